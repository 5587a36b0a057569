//! Proves the model test: breaks the product in known ways, one at a time, in a checkout of its
//! own, and expects each break to be found. Takes minutes a break, so it is run by hand.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use serde::Deserialize;

/// Breaks the product on purpose and expects the model test to notice.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only breaks whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// First seed; one with which the product as it is passes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds to try for each break.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Operations of each seed.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Target directory for the broken builds; keep it, to build faster the next time.
    #[arg(long)]
    target: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Table {
    mutation: Vec<Mutation>,
}

#[derive(Debug, Deserialize)]
struct Mutation {
    name: String,
    file: PathBuf,
    find: String,
    replace: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutations: {error}");
            ExitCode::from(2)
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn run(arguments: &Arguments) -> Outcome<bool> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(package.join("mutations.toml"))?;
    let table: Table = toml::from_str(&table)?;
    let checkout = Checkout::create(package, &arguments.target)?;
    build(&checkout.path, &arguments.target)?;
    if is_found(arguments)? {
        return Err("the model test fails without any break; choose another seed".into());
    }
    let mut all_found = true;
    for mutation in table.mutation {
        if arguments.only.as_ref().is_some_and(|only| !mutation.name.contains(only)) {
            continue;
        }
        checkout.break_as(&mutation)?;
        build(&checkout.path, &arguments.target)?;
        let found = is_found(arguments)?;
        println!("{}  {}", if found { "found" } else { "MISSED" }, mutation.name);
        all_found &= found;
        checkout.repair()?;
    }
    Ok(all_found)
}

/// A detached checkout of the present commit, removed at the end.
struct Checkout {
    repository: PathBuf,
    path: PathBuf,
}

impl Checkout {
    /// In the target directory, always at the same place, so that builds are incremental.
    fn create(repository: &Path, target: &Path) -> Outcome<Self> {
        let path = std::path::absolute(target)?.join("broken-checkout");
        let mut add = git(repository);
        succeed(add.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&path))?;
        Ok(Checkout { repository: repository.to_owned(), path })
    }

    fn break_as(&self, mutation: &Mutation) -> Outcome<()> {
        let path = self.path.join(&mutation.file);
        let text = std::fs::read_to_string(&path)?;
        let occurrences = text.matches(&mutation.find).count();
        if occurrences != 1 {
            let Mutation { name, file, .. } = mutation;
            let file = file.display();
            return Err(format!("`{name}`: its text occurs {occurrences} times in {file}").into());
        }
        Ok(std::fs::write(path, text.replace(&mutation.find, &mutation.replace))?)
    }

    fn repair(&self) -> Outcome<()> {
        succeed(git(&self.path).args(["checkout", "--quiet", "--", "."]))
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let mut remove = git(&self.repository);
        let _ = succeed(remove.args(["worktree", "remove", "--force"]).arg(&self.path));
    }
}

fn git(directory: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory);
    git
}

fn succeed(command: &mut Command) -> Outcome<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

fn build(checkout: &Path, target: &Path) -> Outcome<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "tidepool-cli", "--target-dir"]).arg(target);
    succeed(cargo.current_dir(checkout).env("RUSTFLAGS", "-Awarnings"))
}

fn is_found(arguments: &Arguments) -> Outcome<bool> {
    let mut model = Command::new(std::env::current_exe()?.with_file_name("model"));
    model.arg("--operations").arg(arguments.operations.to_string());
    model.arg("--seeds").arg(arguments.seeds.to_string());
    model.arg("--seed").arg(arguments.seed.to_string());
    model.args(["--shrink", "0", "--log", "/dev/null"]);
    model.env("TIDEPOOL_BINARY", arguments.target.join("debug/tidepool"));
    let status = model.stdout(Stdio::null()).status()?;
    match status.code() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(format!("the model test ended with {status}").into()),
    }
}
