//! Hands the commands of the laboratory (models, plans, calibration, benchmarks, the simulator of
//! memory control) over to a program of its own, `tidepool-lab`, so that nothing of it is linked
//! into the process that serves a node.

use tidepool_proto::Result;
use tidepool_terminal::exit::Outcome;

use crate::companion::Companion;

const LABORATORY: Companion = Companion {
    program: "tidepool-lab",
    remedy: "install it: package tidepool-lab, or `./x build` in the sources",
};

/// Goes on as the laboratory, with the same arguments. Returns only if it is not there.
///
/// # Errors
/// `Unsupported` where it is not installed, or what is installed as it is this program.
pub fn hand_over() -> Result<Outcome> {
    LABORATORY.hand_over(1)
}

/// Whether arguments are better read by the laboratory, which knows the help of all commands.
pub fn knows_more() -> bool {
    let first = std::env::args_os().nth(1);
    first.is_some_and(|first| first == "help") && LABORATORY.is_beside()
}
