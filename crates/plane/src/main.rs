//! The program `tidepool-plane`.

fn main() -> std::process::ExitCode {
    tidepool_plane::main()
}
