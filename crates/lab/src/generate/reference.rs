//! The reference in Markdown and the example configuration, made from the tables.

use std::fmt::Write;

use tidepool_proto::ErrorKind;
use tidepool_proto::hadoop::{HADOOP_OPTIONS, key};
use tidepool_proto::metric::METRICS;
use tidepool_proto::option::{OPTIONS, OptionKind, OptionSpec, POLICIES, QUOTA_KEYS, RULE_KEYS};

use super::java;
use tidepool_terminal::exit::EXIT_CODES;
use tidepool_terminal::failure::kind_name;

const MADE: &str = "<!-- Made by `tidepool generate docs`; change the tables, not this file. -->\n";

/// All generated files: path below the top of the source tree, and content.
pub fn files(tree: &clap::Command) -> Vec<(&'static str, String)> {
    vec![
        ("docs/reference/options.md", options()),
        ("docs/reference/metrics.md", metrics()),
        ("docs/reference/errors.md", errors()),
        ("docs/reference/cli.md", command_line(tree)),
        ("deploy/tidepool.toml", example()),
        ("java/hadoop/src/main/java/io/tidepool/hadoop/TideOptions.java", java::options()),
    ]
}

/// Lets a text stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

macro_rules! put {
    ($text:expr, $($argument:tt)*) => {{
        // Writing to a string cannot fail.
        let _ = writeln!($text, $($argument)*);
    }};
}

fn options() -> String {
    let mut text = format!("# Options\n\n{MADE}\n");
    text += "An option is set in the configuration file (`--config FILE`, TOML), overridden by its \
             environment variable, overridden by its flag. `tidepool config` prints what is in \
             force and where it comes from. Options marked *live* are changed in a running node \
             by `tidepool resize`, `tidepool policy`, `tidepool control set`, or a new file and \
             SIGHUP; all others need a restart.\n\nSizes are written as `8GiB`, `400MB` \
             or plain bytes. Paths in a file are absolute.\n\n";
    text += "| option | flag | environment | default | valid | unit | live |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for spec in OPTIONS {
        put!(
            text,
            "| [`{0}`](#{0}) | `--{1}` | `{2}` | {3} | {4} | {5} | {6} |",
            spec.name,
            spec.flag(),
            spec.environment(),
            spec.default.map(|default| format!("`{default}`")).unwrap_or_default(),
            cell(&spec.kind.valid()),
            spec.unit,
            if spec.live { "yes" } else { "" }
        );
    }
    for spec in OPTIONS {
        put!(text, "\n### {}\n\n{}", spec.name, cell(spec.doc));
        if spec.name == "policy" {
            text.push('\n');
            for (name, doc) in POLICIES {
                put!(text, "- `{name}`: {doc}");
            }
        }
    }
    text += "\n## Rules for directories\n\nEach `[[rule]]` of the file is for a directory and all \
             below it; the rule with the longest path wins.\n\n";
    keys(&mut text, RULE_KEYS);
    text += "\n## Quotas of users\n\nEach `[[quota]]` of the file is for a user.\n\n";
    keys(&mut text, QUOTA_KEYS);
    text += "\n## Hadoop\n\nKeys of `tide://` in a Hadoop configuration (`core-site.xml`, `-D`; in \
             Spark with `spark.hadoop.` before). Those marked *per open* may also be given to \
             `openFile().opt(...)` and `createFile(...).opt(...)`.\n\n";
    text += "| key | meaning | valid | unit | default | per open |\n|---|---|---|---|---|---|\n";
    for spec in HADOOP_OPTIONS {
        put!(
            text,
            "| `{}` | {} | {} | {} | {} | {} |",
            key(spec),
            cell(spec.doc),
            cell(&spec.kind.valid()),
            spec.unit,
            spec.default.map(|default| format!("`{default}`")).unwrap_or_default(),
            if spec.live { "yes" } else { "" }
        );
    }
    text
}

fn keys(text: &mut String, specs: &[OptionSpec]) {
    *text += "| key | meaning | valid | unit | default |\n|---|---|---|---|---|\n";
    for spec in specs {
        put!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            spec.name,
            cell(spec.doc),
            cell(&spec.kind.valid()),
            spec.unit,
            spec.default.map(|default| format!("`{default}`")).unwrap_or_default()
        );
    }
}

fn metrics() -> String {
    let mut text = format!("# Metrics\n\n{MADE}\n");
    text += "`tidepool metrics` prints them; `metrics_address` serves them at `/metrics` in the \
             text format of Prometheus.\n\nBytes are conserved: \
             `tidepool_read_bytes_asked_total` is the sum of `tidepool_read_bytes_served_total` \
             over all levels plus `tidepool_read_bytes_failed_total`.\n\n";
    text += "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n";
    for metric in &METRICS {
        let (name, kind, unit) = (metric.name, metric.kind.name(), metric.unit);
        let labels = metric.labels.join(", ");
        put!(text, "| `{name}` | {kind} | {unit} | {labels} | {} |", cell(metric.doc));
    }
    text += "\nLevels, nearest first: `mapped` (a segment that the reader holds itself), `store` \
             (this node's store), `pfs`. `peer` (another node's memory) and `buffer` (a buffer \
             node) are names kept for later: nodes do not know of each other, so both stay 0. What \
             the kernel reads by itself from passthrough opens is in no level.\n";
    text
}

fn errors() -> String {
    let mut text = format!("# Errors\n\n{MADE}\n");
    text += "An error names the operation, the cause and a remedy. Programs see an errno: that of \
             the PFS where it failed, else that of the kind.\n\n";
    text += "| kind | name in JSON | errno | try again | meaning and remedy |\n\
             |---|---|---|---|---|\n";
    for kind in ErrorKind::ALL {
        let errno = kind.errno();
        let name = std::io::Error::from_raw_os_error(errno).to_string();
        let name = name.split(" (os error").next().unwrap_or_default();
        let again = if kind.is_retryable() { "yes" } else { "no" };
        let (stable, meaning) = (kind_name(kind), cell(kind.explanation()));
        put!(text, "| {kind} | `{stable}` | {errno} ({name}) | {again} | {meaning} |");
    }
    text += "\n## Exit codes of the command line\n\n| code | meaning |\n|---|---|\n";
    for (code, meaning) in EXIT_CODES {
        put!(text, "| {code} | {meaning} |");
    }
    text
}

fn command_line(tree: &clap::Command) -> String {
    let mut text = format!("# Command line\n\n{MADE}\n");
    text += "Files are named by their path on the PFS, below the mount, or as `tide:///path`. \
             Commands that print facts take `--json`; the keys are stable, and what is not known \
             is `null` (`report` of the memory control while no controller has reported). A \
             command that fails and has printed nothing yet prints `{\"error\": {\"kind\", \
             \"message\", \"remedy\"}}`: a [name](errors.md) of the kind, or `interrupted`; the \
             cause; what to do, or `null`. `explain` has `path` and `error` in the place of what \
             it could not look at. Commands that talk to a node take `--socket PATH` or \
             `TIDEPOOL_SOCKET`. `tidepool generate completion SHELL` prints a completion script, \
             `tidepool generate man DIR` writes man pages.\n\n\
             | exit code | meaning |\n|---|---|\n";
    for (code, meaning) in EXIT_CODES {
        put!(text, "| {code} | {meaning} |");
    }
    let mut command = tree.clone().term_width(96);
    command.build();
    describe(&mut text, &mut command);
    text
}

fn describe(text: &mut String, command: &mut clap::Command) {
    let name = command.get_bin_name().unwrap_or("tidepool").to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    put!(text, "\n## {name}\n\n```text\n{}\n```", lines.join("\n").trim_end());
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            describe(text, inner);
        }
    }
}

fn example() -> String {
    let mut text = String::from(
        "# Configuration of a Tidepool node. Set the first two for your site; all \
         others are at their defaults.\n\
         # Made by `tidepool generate docs`; copy it, and take the `#` away where you change a \
         value.\n\
         # Use: tidepool node start --config FILE\n",
    );
    let (first, others): (Vec<&OptionSpec>, Vec<&OptionSpec>) =
        OPTIONS.iter().partition(|spec| ["pfs", "mount"].contains(&spec.name));
    for spec in first.into_iter().chain(others) {
        put!(text, "\n# {}", wrapped(spec.doc));
        put!(text, "# Valid: {}.{}", spec.kind.valid(), if spec.live { " Live." } else { "" });
        match (spec.name, spec.default) {
            ("pfs", _) => put!(text, "pfs = \"/lustre/project\""),
            ("mount", _) => put!(text, "mount = \"/mnt/tide\""),
            (_, Some(default)) => put!(text, "#{} = {}", spec.name, toml_value(spec, default)),
            (_, None) => put!(text, "#{} = {}", spec.name, toml_value(spec, sample(spec))),
        }
    }
    text += "\n# Rules for directories; the longest path wins.\n#[[rule]]\n";
    for spec in RULE_KEYS {
        let value = spec.default.unwrap_or_else(|| sample(spec));
        put!(text, "#{} = {}    # {}", spec.name, toml_value(spec, value), spec.doc);
    }
    text += "\n# Quotas of users.\n#[[quota]]\n";
    for spec in QUOTA_KEYS {
        put!(text, "#{} = {}    # {}", spec.name, toml_value(spec, sample(spec)), spec.doc);
    }
    text
}

/// A plausible value of an option without default.
fn sample(spec: &OptionSpec) -> &'static str {
    match (spec.name, spec.kind) {
        ("mount", _) => "/mnt/tide",
        ("socket", _) => "/run/tidepool/node.sock",
        ("log_file", _) => "/var/log/tidepool/node.log",
        ("path", _) => "scratch",
        ("fault", _) => "read:rate=400MB/s",
        ("buffer_servers", _) => "mem1:11211,mem2:11211",
        ("user", _) => "alice",
        ("timestamp_granularity_ns", _) => "4000000",
        ("time_to_live_s", _) => "86400",
        (_, OptionKind::Path) => "/some/path",
        (_, OptionKind::Bytes { .. } | OptionKind::Memory) => "16MiB",
        (_, OptionKind::Count { .. }) => "4",
        (_, OptionKind::Share | OptionKind::Number { .. }) => "0.5",
        (_, OptionKind::Switch) => "true",
        (_, OptionKind::Choice(names)) => names[0],
        (_, OptionKind::Address) => "127.0.0.1:9464",
        (_, OptionKind::Names) => "0,1",
        (_, OptionKind::Text) => "text",
    }
}

fn toml_value(spec: &OptionSpec, value: &str) -> String {
    match spec.kind {
        OptionKind::Count { .. }
        | OptionKind::Share
        | OptionKind::Number { .. }
        | OptionKind::Switch => value.to_owned(),
        OptionKind::Names => {
            let names: Vec<String> = value.split(',').map(|name| format!("\"{name}\"")).collect();
            format!("[{}]", names.join(", "))
        }
        _ => format!("\"{value}\""),
    }
}

/// Breaks a long comment into lines.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.len() + word.len() > 90 {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n# ")
}
