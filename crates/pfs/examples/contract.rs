//! Runs the contract suite for lower stores on a directory and prints what it found: lines for
//! people, or JSON with `--json`. Exit code 1 if a check failed.

use tidepool_pfs::contract::{self, ContractOptions, Outcome};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let Some(root) = arguments.iter().find(|argument| !argument.starts_with("--")) else {
        eprintln!("usage: contract [--json] DIRECTORY");
        std::process::exit(2);
    };
    let report = contract::run(root.as_ref(), ContractOptions::default(), &mut |check| {
        if !json {
            let outcome = format!("{:?}", check.outcome).to_lowercase();
            println!("{outcome:9} {:27} {}", check.name, check.measured);
            if !check.consequence.is_empty() {
                println!("{:37} -> {}", "", check.consequence);
            }
        }
    });
    if json {
        println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain data"));
    } else {
        println!("{} on {}: {:.1} s", report.root, report.fs_type, report.elapsed_ms / 1e3);
    }
    std::process::exit(i32::from(report.count(Outcome::Failed) > 0));
}
