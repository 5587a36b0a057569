//! Proven users of the file system, each with one command: `./x example NAME`. Every result is
//! checked by something that did not make it, past the file system under test where that is
//! possible. Times are shown, never judged.

mod distcp;
mod flink;
mod hive;
mod mapreduce;
mod notices;
mod place;
mod puma;
mod regression;
mod report;
mod spark;
mod tables;
mod terasort;
mod turmoil;

pub use place::{Place, PlaceOptions, forget_tree};
pub use report::Report;
pub use spark::{Spark, kmeans_data};

use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::arguments::{ExampleOptions, Storage};
use crate::environment;
use crate::jvm::artifacts;

/// What an example is.
struct Example {
    name: &'static str,
    about: &'static str,
    /// Bytes of its data where `--size` does not say.
    size_bytes: u64,
    run: fn(&mut Place, u64) -> Result<Report>,
}

const EXAMPLES: [Example; 11] = [
    Example {
        name: "terasort",
        about: "TeraGen, TeraSort and TeraValidate on YARN",
        size_bytes: 256 << 20,
        run: terasort::on_yarn,
    },
    Example {
        name: "terasort-local",
        about: "the same in one process, without daemons of Hadoop",
        size_bytes: 64 << 20,
        run: terasort::run,
    },
    Example {
        name: "dfsio",
        about: "TestDFSIO write and read on YARN",
        size_bytes: 512 << 20,
        run: mapreduce::dfsio,
    },
    Example {
        name: "sort",
        about: "RandomWriter, Sort and SortValidator on YARN",
        size_bytes: 128 << 20,
        run: mapreduce::sort,
    },
    Example {
        name: "puma",
        about: "three programs of PUMA on YARN: word sequences, their index, ratings",
        size_bytes: 64 << 20,
        run: puma::run,
    },
    Example {
        name: "spark-kmeans",
        about: "MLlib's K-means on a standalone cluster, data read again in every pass",
        size_bytes: 512 << 20,
        run: spark::kmeans,
    },
    Example {
        name: "spark-regression",
        about: "logistic and linear regression and a support vector machine, the same way",
        size_bytes: 128 << 20,
        run: spark::regression,
    },
    Example {
        name: "spark-sql",
        about: "tables in Parquet and ORC: written, then asked several times",
        size_bytes: 64 << 20,
        run: spark::sql,
    },
    Example {
        name: "flink",
        about: "a batch job on a job manager and a task manager: reads and writes CSV",
        size_bytes: 64 << 20,
        run: flink::count,
    },
    Example {
        name: "hive",
        about: "external tables in CSV, ORC and Parquet, written and asked by Tez in one process",
        size_bytes: 32 << 20,
        run: hive::run,
    },
    Example {
        name: "distcp",
        about: "from a real HDFS and back, with -update and checksums",
        size_bytes: 128 << 20,
        run: distcp::run,
    },
];

/// Runs the example that the options name, or lists all.
pub fn run(options: &ExampleOptions) -> Result<()> {
    let Some(name) = &options.name else {
        println!(
            "./x example NAME [--size 256MiB] [--storage tide|hdfs|pfs] [--pfs DIR] [--turmoil]\n"
        );
        for Example { name, about, size_bytes, .. } in EXAMPLES {
            println!("  {name:<17} {about} ({} MiB)", size_bytes >> 20);
        }
        return Ok(());
    };
    artifacts::use_versions(&options.with)?;
    let report = report(name, options)?;
    println!("{report}");
    for version in &options.with {
        println!("  with {version}");
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| path.display().to_string())?;
        println!("figures: {}", path.display());
    }
    Ok(())
}

/// Runs an example; the result has been checked.
pub fn report(name: &str, options: &ExampleOptions) -> Result<Report> {
    let example = EXAMPLES.iter().find(|example| example.name == name);
    let example = example.with_context(|| {
        let names: Vec<&str> = EXAMPLES.iter().map(|example| example.name).collect();
        format!("no example `{name}`; there are {}", names.join(", "))
    })?;
    anyhow::ensure!(
        !options.turmoil || options.storage == Storage::Tide,
        "--turmoil is about a node; use it with --storage tide"
    );
    let bytes = options.size.unwrap_or(example.size_bytes);
    let logs = environment::target().join("example-logs").join(name);
    if logs.exists() {
        std::fs::remove_dir_all(&logs).with_context(|| logs.display().to_string())?;
    }
    let mut place = Place::new(&PlaceOptions {
        storage: options.storage,
        pfs: options.pfs.clone(),
        // Half of the data is always too much for the store in turmoil, and nothing otherwise.
        memory_bytes: if options.turmoil { bytes } else { bytes * 5 / 2 + (128 << 20) },
        logs: logs.clone(),
        turmoil_seed: options.turmoil.then(|| options.seed.unwrap_or_else(new_seed)),
        forget_before: options.forget_before.clone(),
    })?;
    let result = (example.run)(&mut place, bytes).and_then(|report| place.finish(report));
    result.with_context(|| format!("{name} (logs: {})", logs.display()))
}

/// Another one each time, short enough to be typed.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_micros())
}
