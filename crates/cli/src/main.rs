//! The program `tidepool`: the node, and everything to talk to it.

fn main() -> std::process::ExitCode {
    tidepool_cli::main()
}
