//! Tests of the store as a whole, by subject.

mod support;

mod basics;
mod borrows;
mod clients;
mod extend;
mod model;
mod random;
mod shares;
mod small;
mod threads;
