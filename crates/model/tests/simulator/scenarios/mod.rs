//! Scenarios: tests of memory control in each situation that it is made for. All time is virtual.
//! Figures are printed; `--nocapture` shows them.

mod demand;
mod faults;
mod hostile;
mod keeps;
mod limits;
mod stores;
mod two_nodes;
