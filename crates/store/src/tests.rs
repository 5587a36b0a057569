//! Tests of the store as a whole, by subject.

mod support;

mod basics;
mod clients;
mod extend;
mod loans;
mod model;
mod random;
mod shares;
mod small;
mod threads;
