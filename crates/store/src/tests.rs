//! Tests of the store as a whole, by subject.

mod support;

mod basics;
mod model;
