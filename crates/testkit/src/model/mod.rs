//! Random operations through many actors, one at a time, against a plain model in memory.
//!
//! [`generator`] chooses an [`operation`]; the [`driver`] has an actor ([`actors`], a child process
//! running [`actor`]) carry it out, does the same to the [`mod@reference`] and compares. What a
//! handle may see after another program changed its file is in [`mod@reference`] too.

pub mod actor;
pub mod actors;
pub mod checks;
pub mod defects;
pub mod driver;
pub mod files;
pub mod generator;
pub mod operation;
mod outside;
pub mod reference;
mod room;
pub mod run;
pub mod wire;
