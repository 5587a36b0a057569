//! Arguments that many commands have in common.

use std::ffi::OsString;

use clap::Args;

use crate::connection::SocketArgument;

/// Arguments of commands that print facts of the node.
#[derive(Args, Clone, Debug)]
pub struct Facts {
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of commands of the laboratory, which reads them itself.
#[derive(Args, Clone, Debug)]
pub struct LaboratoryArguments {
    /// As they were given.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}
