//! Proves the tests: breaks the product in known ways, one at a time, in a checkout of its own, and
//! expects the test that each break names, or the model test, to find it. Takes minutes a break, so
//! it is run by hand.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use serde::Deserialize;

/// Breaks the product on purpose and expects the tests to notice.
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
    /// The tests that must find it: package, test program and name. None: the model test.
    test: Option<[String; 3]>,
}

fn table() -> Outcome<Table> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(package.join("mutations.toml"))?;
    Ok(toml::from_str(&table)?)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    // Others run in other directories.
    arguments.target = std::path::absolute(&arguments.target).unwrap_or(arguments.target);
    match run(&arguments) {
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
    let only = arguments.only.as_deref().unwrap_or_default();
    let mut mutations = table()?.mutation;
    mutations.retain(|mutation| mutation.name.contains(only));
    let checkout = Checkout::create(package, &arguments.target)?;
    let proof = Proof { checkout: &checkout, arguments };
    // Nothing is proved by a test that fails anyway.
    let mut unbroken: Vec<_> = mutations.iter().map(|mutation| &mutation.test).collect();
    unbroken.sort();
    unbroken.dedup();
    for test in unbroken {
        if proof.finds(test.as_ref())? {
            return Err(format!("{test:?} fails without any break").into());
        }
    }
    let mut all_found = true;
    for mutation in &mutations {
        checkout.break_as(mutation)?;
        let found = proof.finds(mutation.test.as_ref())?;
        println!("{}  {}", if found { "found" } else { "MISSED" }, mutation.name);
        all_found &= found;
        checkout.repair()?;
    }
    Ok(all_found)
}

impl Mutation {
    /// Its file in `checkout`, broken.
    fn applied_to(&self, checkout: &Path) -> Outcome<String> {
        let Mutation { name, file, find, replace, .. } = self;
        let text = std::fs::read_to_string(checkout.join(file))?;
        let occurrences = text.matches(find).count();
        if occurrences != 1 {
            let file = file.display();
            return Err(format!("`{name}`: its text occurs {occurrences} times in {file}").into());
        }
        Ok(text.replace(find, replace))
    }
}

/// A detached checkout of the present commit, removed at the end.
struct Checkout {
    repository: PathBuf,
    path: PathBuf,
}

impl Checkout {
    /// In the target directory, always at the same place, so that builds are incremental.
    fn create(repository: &Path, target: &Path) -> Outcome<Self> {
        let path = target.join("broken-checkout");
        let mut add = git(repository);
        succeed(add.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&path))?;
        Ok(Checkout { repository: repository.to_owned(), path })
    }

    fn break_as(&self, mutation: &Mutation) -> Outcome<()> {
        let text = mutation.applied_to(&self.path)?;
        Ok(std::fs::write(self.path.join(&mutation.file), text)?)
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

/// How breaks are looked for.
struct Proof<'a> {
    checkout: &'a Checkout,
    arguments: &'a Arguments,
}

impl Proof<'_> {
    fn finds(&self, test: Option<&[String; 3]>) -> Outcome<bool> {
        let uses_program = |[package, ..]: &[String; 3]| package != "tidepool-store";
        if test.is_none_or(uses_program) {
            self.cargo(&["build", "--package", "tidepool-cli"])?;
        }
        match test {
            Some(test) => self.test_finds(test),
            None => self.model_finds(),
        }
    }

    fn cargo(&self, arguments: &[&str]) -> Outcome<()> {
        succeed(self.command(arguments).stderr(Stdio::inherit()))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // A break may make a test hang.
        let mut cargo = Command::new("timeout");
        cargo.args(["--kill-after=10", "1200", "cargo", arguments[0], "--quiet", "--target-dir"]);
        cargo.arg(&self.arguments.target).args(&arguments[1..]).current_dir(&self.checkout.path);
        cargo.env("RUSTFLAGS", "-Awarnings").env("TIDEPOOL_BINARY", self.binary());
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        cargo
    }

    fn binary(&self) -> PathBuf {
        self.arguments.target.join("debug/tidepool")
    }

    fn test_finds(&self, [package, program, name]: &[String; 3]) -> Outcome<bool> {
        let of = match program.as_str() {
            "lib" => vec!["test", "--package", package, "--lib"],
            program => vec!["test", "--package", package, "--test", program],
        };
        self.cargo(&[&of[..], &["--no-run"]].concat())?;
        let mut run = self.command(&[&of[..], &["--", "--exact", name]].concat());
        let run = run.stdout(Stdio::piped()).output()?;
        if String::from_utf8_lossy(&run.stdout).contains("running 0 tests") {
            return Err(format!("{package} has no test {name} in {program}").into());
        }
        Ok(!run.status.success())
    }

    fn model_finds(&self) -> Outcome<bool> {
        let mut model = Command::new(std::env::current_exe()?.with_file_name("model"));
        model.arg("--operations").arg(self.arguments.operations.to_string());
        model.arg("--seeds").arg(self.arguments.seeds.to_string());
        model.arg("--seed").arg(self.arguments.seed.to_string());
        model.args(["--shrink", "0", "--log", "/dev/null"]);
        model.env("TIDEPOOL_BINARY", self.binary());
        let status = model.stdout(Stdio::null()).status()?;
        match status.code() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(format!("the model test ended with {status}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_break_fits_the_product_as_it_is() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for mutation in table().unwrap().mutation {
            mutation.applied_to(&checkout).unwrap();
        }
    }
}
