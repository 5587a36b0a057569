//! Tests of the models through their public functions.

mod crossovers;
mod hit_ratios;
mod map_reduce;
mod mountain;
mod papers;
mod plans;
mod properties;
mod support;
