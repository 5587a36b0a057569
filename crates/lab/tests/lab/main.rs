//! Runs of the real program: models, plans, calibration and the mountain, with good and bad input.

mod control;
mod generated;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidepool_report::legible;

/// The inputs of the paper.
const PAPER: [&str; 10] = [
    "--network",
    "1170MB/s",
    "--disk-read",
    "237MB/s",
    "--disk-write",
    "116MB/s",
    "--memory",
    "6267MB/s",
    "--pfs",
    "10GB/s",
];

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool-lab"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TIDEPOOL_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn with_paper<'a>(start: &[&'a str], end: &[&'a str]) -> Vec<&'a str> {
    [start, &PAPER, end].concat()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Exit code and what standard error says.
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let code = output.status.code().expect("it ends by itself");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn crossovers_of_the_paper_by_the_fixed_command_line() {
    for (pfs, reads, writes) in [("10GB/s", [43, 53, 83], 259), ("50GB/s", [211, 262, 414], 1294)] {
        let mut arguments =
            with_paper(&["model", "crossover"], &["--f", "0.2", "--f", "0.5", "--json"]);
        arguments[11] = pfs;
        let found = json(&arguments);
        let nodes: Vec<u64> = found["reads"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["nodes"].as_u64().unwrap())
            .collect();
        assert_eq!(nodes, reads);
        assert_eq!(found["writes"]["nodes"], writes);
    }
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    let cases: [(&[&str], &str); 8] = [
        (&["model", "crossover", "--network", "0MB/s"], "above zero"),
        (&["model", "crossover", "--network=-1MB/s"], "is no number"),
        (&["model", "crossover", "--network", "5"], "per second"),
        (&["model", "crossover", "--network", "5G/s"], "unknown unit"),
        (&["model", "crossover", "--f", "1.5"], "between 0 and 1"),
        (&["model", "throughput", "--nodes", "0"], "from 1"),
        (&["model", "crossover", "--network", "1GB/s"], "--memory"),
        (&["plan", "--network", "1GB/s", "--memory", "1GB/s", "--pfs", "1GB/s"], "--set"),
    ];
    for (arguments, reason) in cases {
        let (code, text) = refused(arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(text.contains(reason), "{arguments:?}: {text}");
    }
    let missing = with_paper(&["model", "crossover"], &["--calibration", "/nowhere/file.toml"]);
    assert_eq!(refused(&missing).0, 4, "a calibration that is missing");
}

#[test]
fn pictures_and_reports_are_written_or_the_failure_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let pictures = directory.path().join("pictures");
    let to = pictures.to_str().unwrap();
    json(&with_paper(&["model", "aggregate"], &["--pictures", to, "--json"]));
    json(&with_paper(
        &["model", "mapreduce"],
        &["--input-size", "256GB", "--pictures", to, "--json"],
    ));
    for name in ["aggregate-throughput", "mapreduce"] {
        let svg = std::fs::read_to_string(pictures.join(format!("{name}.svg"))).unwrap();
        assert_eq!(legible::faults(&svg), Vec::<String>::new(), "{name}");
        assert!(legible::texts(&svg).join(" ").contains("50 % in memory"), "{name}");
        assert!(pictures.join(format!("{name}.png")).exists(), "{name}");
    }
    let report = directory.path().join("plan.html");
    let workload = ["--set", "3TB", "--passes", "10", "--nodes", "16", "--memory-per-node"];
    let plan = |report: &Path| {
        let end = [&workload[..], &["96GB", "--json", "--report", report.to_str().unwrap()]];
        run(&with_paper(&["plan"], &end.concat()))
    };
    let output = plan(&report);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["advice"]["worth_it"], true);
    assert_eq!(found["hdfs_over_pfs"]["nodes"], 43, "as `model crossover` says");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("<svg") && page.contains("Worth it"));
    // Two pictures, each for wide and for narrow paper.
    let svgs: Vec<&str> = page.split("<svg").skip(1).collect();
    assert_eq!(svgs.len(), 4);
    for svg in svgs {
        let svg = format!("<svg{}</svg>", svg.split("</svg>").next().unwrap());
        assert_eq!(legible::faults(&svg), Vec::<String>::new());
        let all = legible::texts(&svg).join(" ");
        let total = found["choices"][0]["total"].as_f64().unwrap();
        assert!(all.contains(&format!("{total:.0} s")), "{total}: {all}");
    }
    let output = plan(&directory.path().join("missing/plan.html"));
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing/plan.html"));
}

/// A file as `calibrate` writes it; `memory` is its lowest, median and highest rate.
fn calibration(directory: &Path, memory: [f64; 3], one_thread: f64) -> String {
    let measured = |[lowest, median, highest]: [f64; 3]| {
        format!(
            "bytes_per_second = {median:?}\nlowest = {lowest:?}\nhighest = {highest:?}\n\
             repeats = 3\nstreams = 4\nhow = \"example\"\n"
        )
    };
    let same = |rate: f64| measured([rate; 3]);
    let (memory, one_thread) = (measured(memory), same(one_thread));
    let (pfs, network) = (same(560e6), same(10e9));
    let text = format!(
        "version = 1\ntaken_s = 1\ntidepool = \"0\"\nwarnings = [\"it was busy\"]\n[machine]\n\
         host = \"h\"\nkernel = \"6\"\nprocessor = \"p\"\nprocessors = 4\n\
         memory_bytes = 68719476736\nload = 0.0\n[memory]\n{memory}[memory_one_stream]\n\
         {one_thread}[network]\n{network}[pfs]\ndirectory = \"/pfs\"\nfile_system = \"lustre\"\n\
         direct = true\nlatency_us = 400.0\n[pfs.read]\n{pfs}[pfs.write]\n{pfs}"
    );
    let file = directory.join("calibration.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_bad_calibration_gives_no_verdict_and_its_warnings_come_first() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("plan.html");
    let plan = |file: &str, more: &[&str]| {
        let workload = ["plan", "--set", "50GB", "--passes", "10", "--no-page-cache", "--json"];
        let rates = ["--calibration", file, "--report", report.to_str().unwrap()];
        json(&[&workload[..], &rates, more].concat())["advice"].clone()
    };
    let noisy = calibration(directory.path(), [484e6, 584e6, 3630e6], 600e6);
    let unsure = plan(&noisy, &[]);
    assert!(unsure["worth_it"].is_null() && unsure["use_storage"].is_null(), "{unsure}");
    let page = std::fs::read_to_string(&report).unwrap();
    let place = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words}: {page}"));
    assert!(place("it was busy") < place("Cannot say"));
    assert_eq!(plan(&noisy, &["--memory", "3.63GB/s"])["worth_it"], true);
    assert_eq!(plan(&noisy, &["--memory", "584MB/s"])["worth_it"], false);
    let slow = calibration(directory.path(), [580e6, 584e6, 590e6], 1310e6);
    let text = plan(&slow, &[])["text"].to_string();
    assert!(text.contains("slower than with one (1.31 GB/s)"), "{text}");
    let good = calibration(directory.path(), [3600e6, 3630e6, 3700e6], 1310e6);
    assert_eq!(plan(&good, &[])["worth_it"], true);
}

#[test]
fn a_calibration_is_written_read_back_and_told_apart_on_another_machine() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calibration.toml");
    let (place, to) = (directory.path().to_str().unwrap(), file.to_str().unwrap());
    let found = json(&[
        "calibrate",
        "--pfs",
        place,
        "--bytes-max",
        "8MiB",
        "--repeats",
        "1",
        "-o",
        to,
        "--json",
    ]);
    assert!(found["pfs"]["read"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    let rest = ["--network", "1GB/s", "--memory", "6GB/s", "--calibration", to, "--json"];
    let of = || json(&[&["model", "throughput"], &rest[..]].concat());
    assert_eq!(of()["calibration"]["other_machine"], false);
    let text = std::fs::read_to_string(&file).unwrap();
    let host = text.lines().find(|line| line.starts_with("host = ")).unwrap();
    std::fs::write(&file, text.replace(host, "host = \"elsewhere\"")).unwrap();
    assert_eq!(of()["calibration"]["other_machine"], true);
    let output = run(&[&["model", "throughput"], &rest[..]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("another machine"));
}

#[test]
fn calibration_never_fills_what_it_measures() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let (code, text) = refused(&["calibrate", "--pfs", place, "--bytes-max", "1000TiB"]);
    assert_eq!(code, 2);
    assert!(text.contains("free") && text.contains("--bytes-max"), "{text}");
    let (code, _) = refused(&["calibrate", "--pfs", "/nowhere", "--bytes-max", "8MiB"]);
    assert_eq!(code, 4);
    let (code, _) =
        refused(&["calibrate", "--pfs", place, "-o", "/nowhere/file", "--bytes-max", "8MiB"]);
    assert_eq!(code, 4, "told before anything is measured");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(refused(&["calibrate"]).0, 2, "nothing to measure");
}

/// Arguments of a mountain with few small points.
fn small_mountain<'a>(pfs: &'a str, output: &'a str) -> Vec<&'a str> {
    let sizes = ["--memory", "32MiB", "--sizes", "8MiB,16MiB,64MiB", "--skips", "0,1MiB"];
    let start = ["bench", "mountain", "--pfs", pfs, "-o", output];
    [&start[..], &sizes, &["--repeats", "1", "--no-shares", "--json"]].concat()
}

#[test]
fn an_interrupted_mountain_keeps_its_points_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let pfs = directory.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let results = directory.path().join("results");
    let json_file = results.join("mountain.json");
    let arguments = small_mountain(pfs.to_str().unwrap(), results.to_str().unwrap());
    // So slow a PFS that there is time to interrupt.
    let slow = [&arguments[..], &["--pfs-rate", "20MB/s"]].concat();
    let mut child =
        command(&slow).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let points = || -> usize {
        let text = std::fs::read_to_string(&json_file).unwrap_or_default();
        let found: Value = serde_json::from_str(&text).unwrap_or_default();
        found["points"].as_array().map_or(0, Vec::len)
    };
    while points() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it must not end before the first point");
        std::thread::sleep(Duration::from_millis(20));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    assert!(!child.wait().unwrap().success());
    let kept = points();
    assert!((1..6).contains(&kept), "{kept}");
    assert_eq!(std::fs::read_dir(&pfs).unwrap().count(), 0, "nothing is left behind");
    let (code, text) = refused(&arguments);
    assert_eq!(code, 2, "another rate is another mountain");
    assert!(text.contains("--fresh"), "{text}");
    let found = json(&slow);
    assert_eq!(found["points"].as_array().unwrap().len(), 6);
    let lines = std::fs::read_to_string(results.join("mountain.csv")).unwrap();
    assert_eq!(lines.lines().count(), 7);
    for name in ["mountain", "mountain-predicted", "slice-sizes", "slice-skips"] {
        assert!(results.join(format!("{name}.png")).exists(), "{name}");
    }
    assert_eq!(std::fs::read_dir(&pfs).unwrap().count(), 0);
}

#[test]
fn a_mountain_that_cannot_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let results = directory.path().join("results");
    let to = results.to_str().unwrap();
    let start = ["bench", "mountain", "--pfs", place, "-o", to];
    for (end, reason) in [
        (["--memory", "1MiB"], "32MiB"),
        (["--memory", "1000TiB"], "available"),
        (["--sizes", "1000TiB"], "free"),
        (["--sizes", "4KiB"], "1MiB"),
    ] {
        let (code, text) = refused(&[&start[..], &end].concat());
        assert_eq!(code, 2, "{end:?}: {text}");
        assert!(text.contains(reason), "{end:?}: {text}");
        assert!(!results.exists(), "{end:?} leaves a directory for results of nothing");
    }
    let below_a_file = directory.path().join("file");
    std::fs::write(&below_a_file, "").unwrap();
    let output = below_a_file.join("results");
    let output = output.to_str().unwrap();
    refused(&["bench", "mountain", "--pfs", place, "-o", output]);
}
