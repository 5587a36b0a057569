//! Memory control without a node: simulations, logs of decisions, recommendations.

use serde_json::Value;
use tidepool_report::legible;

use crate::{json, refused, run};

const TRACE: &str = "time_s,demand_gb\n0,20\n1,20\n3,60\n6,60\n";
const NODE: [&str; 4] = ["--memory", "100GB", "--store", "50GB"];

/// A directory with the trace in it.
fn with_trace() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, TRACE).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

#[test]
fn policies_are_simulated_side_by_side_and_drawn() {
    let (directory, trace) = with_trace();
    for (ending, begin) in [("svg", &b"<svg"[..]), ("png", b"\x89PNG")] {
        let picture = directory.path().join(format!("control.{ending}"));
        let picture_text = picture.to_str().unwrap();
        let policies = ["--policy", "tidepool", "--policy", "dynims", "--policy", "static"];
        let end = ["--picture", picture_text, "--json"];
        let start = ["control", "simulate", &trace];
        let reports = json(&[&start[..], &NODE, &policies, &end].concat());
        let names: Vec<&Value> =
            reports.as_array().unwrap().iter().map(|report| &report["policy"]).collect();
        assert_eq!(names, ["tidepool", "dynims", "static"]);
        let over = |index: usize| reports[index]["measures"]["over_memory_ns"].as_u64().unwrap();
        assert_eq!(over(0), 0);
        assert!(over(2) > 1_000_000_000, "a fixed size is above memory");
        let killed = |index: usize| reports[index]["measures"]["shortages"].as_u64().unwrap();
        assert_eq!((killed(0), killed(2)), (0, 1));
        assert!(reports.as_array().unwrap().iter().all(|one| one["filled_by_asked"] == 0.0));
        assert!(reports[0]["timeline"].as_array().unwrap().len() > 100);
        let content = std::fs::read(&picture).unwrap();
        assert!(content.starts_with(begin), "{ending}");
        if let Ok(svg) = String::from_utf8(content) {
            assert_eq!(legible::faults(&svg), Vec::<String>::new());
            let mean = reports[2]["measures"]["stored_mean_bytes"].as_f64().unwrap() / 1e9;
            let title = format!("store of {mean:.1} GB on average");
            assert!(legible::texts(&svg).join(" ").contains(&title), "{title}");
        }
    }
    let text = run(&["control", "simulate", &trace, "--memory", "100GB"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("mean size of the store"), "{text}");
}

#[test]
fn a_log_is_replayed_cut_and_refused() {
    let (directory, trace) = with_trace();
    let log = directory.path().join("decisions.log");
    let path = log.to_str().unwrap();
    let start = ["control", "simulate", &trace];
    assert!(run(&[&start[..], &NODE, &["--log", path]].concat()).status.success());
    let whole = json(&["control", "replay", path, "--json"]);
    assert!(whole["decisions"].as_u64().unwrap() > 500);
    assert_eq!(whole["mismatches"], Value::Array(vec![]));
    let entries = whole["entries"].as_array().unwrap();
    assert_eq!(entries.len() as u64, whole["decisions"].as_u64().unwrap());
    let shrinks = entries.iter().filter(|entry| entry["reason"] == "demand");
    assert!(shrinks.count() > 0, "each decision has its reason");
    assert!(entries[0]["target_bytes"].as_u64() > entries.last().unwrap()["target_bytes"].as_u64());
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() - 5]).unwrap();
    let cut = json(&["control", "replay", path, "--json"]);
    assert_eq!(cut["decisions"].as_u64().unwrap() + 1, whole["decisions"].as_u64().unwrap());
    assert!(cut["cut_bytes"].as_u64().unwrap() > 0);
    let tuned = json(&["control", "tune", "--log", path, "--json"]);
    assert_eq!(tuned["facts"]["memory_total_bytes"], 100_000_000_000_u64);
    assert!(tuned["facts"]["delay_ms"].as_f64().unwrap() > 0.0, "{}", tuned["facts"]);
    for (content, said) in [
        (TRACE.as_bytes().to_vec(), "no log"),
        (Vec::new(), "within its header"),
        ([&bytes[..200], &[0; 400]].concat(), "at byte"),
    ] {
        std::fs::write(&log, content).unwrap();
        let (code, text) = refused(&["control", "replay", path]);
        assert!(code == 2 && text.contains(said), "{code} {text}");
    }
}

#[test]
fn recommendations_come_with_reasons_and_present_risks() {
    let risky = ["--policy", "dynims", "--set", "gain=2.5", "--memory", "125GB"];
    let measured = ["--release", "5GB/s", "--delay-ms", "300", "--growth", "10GB/s", "--json"];
    let tuned = json(&[&["control", "tune"][..], &risky, &measured].concat());
    let named = |list: &str, name: &str| {
        tuned[list].as_array().unwrap().iter().any(|one| one["parameter"] == name)
    };
    assert!(named("reasons", "gain") && named("risks", "gain"), "{tuned}");
    assert!(tuned["parameters"]["gain"].as_f64().unwrap() < 1.0);
}

#[test]
fn bad_input_is_refused_with_what_to_do() {
    let (directory, trace) = with_trace();
    let other = directory.path().join("other");
    let path = other.to_str().unwrap();
    for (content, said) in [
        ("", "it is empty"),
        ("time_s,demand_gb\n", "no points"),
        ("time_s,demand_gb\n1,1\n1,2\n", "times must rise"),
        ("time_s,demand_pages\n1,1\n", "no column of demand"),
        ("time_s,demand_gb\n1,1GB\n", "line 2"),
        ("{", "EOF"),
        ("time_s,demand_gb\n0,1\n1000000000,1\n", "of at most"),
    ] {
        std::fs::write(&other, content).unwrap();
        let (code, text) = refused(&["control", "simulate", path]);
        assert!(code == 2 && text.contains(said), "{code} {text}");
    }
    for (arguments, code, said) in [
        (&["--set", "hold=1"][..], 2, "no parameter `hold`"),
        (&["--set", "interval_ms=0"], 2, "interval"),
        (&["--policy", "best"], 2, "is none of"),
        (&["--memory", "8GB", "--set", "headroom_bytes=9GB"], 2, "headroom_bytes"),
        (&["--memory", "1GB", "--store", "2GB"], 2, "--store"),
        (&["--picture", "picture.gif"], 2, ".svg"),
        (&["--log", "/nowhere/log"], 4, "/nowhere/log"),
    ] {
        let (found, text) = refused(&[&["control", "simulate", &trace], arguments].concat());
        assert!(found == code && text.contains(said), "{arguments:?}: {found} {text}");
    }
    for delay in ["nan", "inf", "much"] {
        let (code, text) = refused(&["control", "tune", "--delay-ms", delay]);
        assert!(code == 2 && text.contains("no time"), "{delay}: {code} {text}");
    }
    assert_eq!(refused(&["control", "simulate", "/nowhere"]).0, 4);
    assert_eq!(refused(&["control", "replay", "/nowhere"]).0, 4);
}
