//! The tree of installed files below `/`: program, manual, completions, unit, log rotation. Copies
//! files that other tasks made, and the jar that the node starts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use acceptance::{environment, process};
use anyhow::{Context, Result};

/// Shells, and where their completions belong.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/tidepool"),
    ("zsh", "usr/share/zsh/vendor-completions/_tidepool"),
    ("fish", "usr/share/fish/vendor_completions.d/tidepool.fish"),
];
/// Files of `deploy/`, and where they belong. The configuration is no file that an update replaces.
const DEPLOYED: [(&str, &str); 6] = [
    ("tidepool-node.service", "usr/lib/systemd/system/tidepool-node.service"),
    ("tidepool-plane-agent.service", "usr/lib/systemd/system/tidepool-plane-agent.service"),
    ("tidepool.logrotate", "etc/logrotate.d/tidepool"),
    ("tidepool.toml", "usr/share/doc/tidepool/node.toml"),
    ("slurm/prolog.sh", "usr/share/doc/tidepool/slurm/prolog.sh"),
    ("slurm/epilog.sh", "usr/share/doc/tidepool/slurm/epilog.sh"),
];
/// Programs; the second has the commands of the laboratory, the third those of the cluster plane.
const PROGRAMS: [&str; 3] = ["tidepool", "tidepool-lab", "tidepool-plane"];
/// Where the node looks for the jar of its Java program.
const JARS: &str = "usr/share/tidepool";
const MANUAL: &str = "usr/share/man/man1";
const PUBLIC: u32 = 0o755;

/// Makes the tree anew, with the program `binary` and those beside it.
pub fn lay_out(binary: &Path, deploy: &Path, tree: &Path) -> Result<()> {
    if tree.exists() {
        std::fs::remove_dir_all(tree).with_context(|| tree.display().to_string())?;
    }
    let place = |name: &str| -> Result<_> {
        let path = tree.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(tree))?;
        Ok(path)
    };
    for name in PROGRAMS {
        let program = place(&format!("usr/bin/{name}"))?;
        let debug = place(&format!("usr/lib/debug/usr/bin/{name}.debug"))?;
        install(&binary.with_file_name(name), &program, &debug)?;
    }
    let manual = tree.join(MANUAL);
    process::read(process::command(binary, &["generate", "man"]).arg(&manual))?;
    for (shell, name) in COMPLETIONS {
        let script =
            process::read(&mut process::command(binary, &["generate", "completion", shell]))?;
        std::fs::write(place(name)?, script)?;
    }
    for (file, name) in DEPLOYED {
        let from = deploy.join(file);
        std::fs::copy(&from, place(name)?).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

/// Installs a program, and apart from it what only debuggers read.
fn install(built: &Path, program: &Path, debug: &Path) -> Result<()> {
    let run = |tool: &str, arguments: &[&str], paths: [&Path; 2]| {
        process::read(process::command(tool, arguments).args(paths))
            .map(drop)
            .context("strip and objcopy are in the package binutils")
    };
    run("objcopy", &["--only-keep-debug", "--compress-debug-sections"], [built, debug])?;
    run("objcopy", &["--strip-debug"], [built, program])?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    process::read(process::command("objcopy", &[&link]).arg(program))?;
    set_mode(program, PUBLIC)?;
    set_mode(debug, 0o644)
}

/// For the release build of this checkout, below `dist/`.
pub fn of_release(dist: &Path) -> Result<()> {
    let binary = environment::target().join("release/tidepool");
    lay_out(&binary, &environment::checkout().join("deploy"), &dist.join("tree"))
}

/// Adds a jar to the tree below `dist/`.
pub fn add_jar(jar: &Path, dist: &Path) -> Result<()> {
    let place = dist.join("tree").join(JARS);
    std::fs::create_dir_all(&place)?;
    let name = jar.file_name().context("a jar has a name")?;
    std::fs::copy(jar, place.join(name)).with_context(|| jar.display().to_string())?;
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use acceptance::environment;

    /// What is between `begin` and `end` in a file of `deploy/`.
    fn part(file: &str, begin: &str, end: char) -> String {
        let path = environment::checkout().join("deploy").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{begin} in {file}"));
        rest.split(end).next().unwrap_or_default().trim().to_owned()
    }

    #[test]
    fn unit_rotation_and_example_agree_on_the_place_of_the_log() {
        let log = part("tidepool.toml", "#log_file = \"", '"');
        let directory = part("tidepool-node.service", "LogsDirectory=", '\n');
        let rotated = part("tidepool.logrotate", "\n/", '{');
        assert_eq!(log, format!("/var/log/{directory}/node.log"));
        assert_eq!(format!("/{rotated}"), log);
    }
}
