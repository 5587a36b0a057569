//! The program `tidepool`: the node, and the commands to operate it.

fn main() -> std::process::ExitCode {
    tidepool_cli::main()
}
