//! The calibration file: what was measured, on which machine, how well. TOML, so that people read
//! and correct it. Measures nothing itself.

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidepool_model::BytesPerSecond;
use tidepool_proto::{Error, ErrorKind, Result};

use super::machine::{Machine, describe};
use crate::rates::{Origin, Rates, read_toml};

/// Version of the file's form.
pub const VERSION: u32 = 1;
/// Spread of the repeats, in parts of the median, beyond which a figure is called noisy.
pub const SPREAD_MAX: f64 = 0.25;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// Seconds since the epoch when it was taken.
    pub taken_s: u64,
    /// Release that measured.
    pub tidepool: String,
    /// What makes the figures doubtful, one a line.
    pub warnings: Vec<String>,
    /// The machine was too busy for the figures to hold, as a warning says.
    #[serde(default)]
    pub busy: bool,
    /// Where it was taken.
    pub machine: Machine,
    /// Reads of resident bytes by several threads, as the store serves them.
    #[serde(default)]
    pub memory: Option<Measured>,
    /// The same by one thread.
    #[serde(default)]
    pub memory_one_stream: Option<Measured>,
    /// Writes to memory by several threads.
    #[serde(default)]
    pub memory_write: Option<Measured>,
    /// Time of a small read of resident bytes in microseconds.
    #[serde(default)]
    pub memory_latency_us: Option<f64>,
    /// The local disk.
    #[serde(default)]
    pub disk: Option<Volume>,
    /// The PFS.
    #[serde(default)]
    pub pfs: Option<Volume>,
    /// The network, one direction.
    #[serde(default)]
    pub network: Option<Measured>,
}

/// A rate that was measured several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Median of the repeats in bytes per second.
    pub bytes_per_second: f64,
    /// Lowest repeat in bytes per second.
    pub lowest: f64,
    /// Highest repeat in bytes per second.
    pub highest: f64,
    /// How often it was measured.
    pub repeats: u32,
    /// Threads or connections at work at a time.
    pub streams: u32,
    /// How, in words.
    pub how: String,
}

/// A directory of a file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// The directory.
    pub directory: String,
    /// Type of its file system.
    pub file_system: String,
    /// Whether direct I/O was possible; without it, caches of the system may show.
    pub direct: bool,
    /// Time of a small read in microseconds, median.
    pub latency_us: f64,
    /// Reads.
    pub read: Measured,
    /// Writes that reached the file system's own promise of durability.
    pub write: Measured,
}

impl Measured {
    /// From repeats in bytes per second; there is at least one.
    pub fn of(mut rates: Vec<f64>, streams: u32, how: &str) -> Self {
        rates.sort_by(f64::total_cmp);
        Measured {
            bytes_per_second: median(&rates),
            lowest: rates.first().copied().unwrap_or_default(),
            highest: rates.last().copied().unwrap_or_default(),
            repeats: rates.len() as u32,
            streams,
            how: how.to_owned(),
        }
    }

    /// Highest less lowest, in parts of the median.
    pub fn spread(&self) -> f64 {
        (self.highest - self.lowest) / self.bytes_per_second
    }

    fn rate(&self) -> Result<BytesPerSecond> {
        BytesPerSecond::new(self.bytes_per_second)
    }
}

/// The middle of sorted values; the mean of the two middle ones of an even number.
pub fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

impl Calibration {
    /// Reads a file of a known version.
    pub fn read(path: &Path) -> Result<Self> {
        let found: Calibration = read_toml(path, "calibration file")?;
        if found.version != VERSION {
            let detail = format!("it has version {}, this release reads {VERSION}", found.version);
            let operation = format!("reading the calibration file {}", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, operation, detail)
                .remedy("calibrate again with this release"));
        }
        Ok(found)
    }

    /// Writes the file whole: a reader sees the old one or the new one.
    pub fn write(&self, path: &Path) -> Result<()> {
        let operation = || format!("writing the calibration file {}", path.display());
        let text = toml::to_string_pretty(self)
            .map_err(|error| Error::new(ErrorKind::Internal, operation(), error.to_string()))?;
        let failed = |source| Error::pfs(operation(), source);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(name);
        let mut file = std::fs::File::create(&temporary).map_err(failed)?;
        let written = writeln!(file, "# Made by `tidepool calibrate`; rates are bytes per second.")
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&temporary, path));
        if let Err(source) = written {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(&temporary);
            return Err(failed(source));
        }
        Ok(())
    }

    /// Where it is from, compared with this machine.
    pub fn origin(&self) -> Origin {
        let here = describe();
        let there = &self.machine;
        let mut notes = Vec::new();
        let mut compare = |what: &str, there: String, here: String| {
            if there != here {
                notes.push(format!("it is of another machine: {what} {there}, here {here}"));
            }
        };
        compare("host", there.host.clone(), here.host);
        compare("processor", there.processor.clone(), here.processor);
        compare("processors", there.processors.to_string(), here.processors.to_string());
        // A kernel update moves the total by some pages; a tenth of a GiB is another machine.
        let memory = |bytes: u64| format!("memory of {:.1} GiB", bytes as f64 / f64::from(1 << 30));
        compare("with", memory(there.memory_bytes), memory(here.memory_bytes));
        let other_machine = !notes.is_empty();
        notes.extend(self.warnings.iter().cloned());
        Origin { host: there.host.clone(), other_machine, notes }
    }

    /// What the models can use of it.
    pub fn rates(&self) -> Result<Rates> {
        let rate = |found: Option<&Measured>| found.map(Measured::rate).transpose();
        Ok(Rates {
            network: rate(self.network.as_ref())?,
            disk_read: rate(self.disk.as_ref().map(|disk| &disk.read))?,
            disk_write: rate(self.disk.as_ref().map(|disk| &disk.write))?,
            memory: rate(self.memory.as_ref())?,
            memory_write: rate(self.memory_write.as_ref())?,
            pfs: rate(self.pfs.as_ref().map(|pfs| &pfs.read))?,
            pfs_write: rate(self.pfs.as_ref().map(|pfs| &pfs.write))?,
            ..Rates::default()
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A calibration of no machine there is.
    pub fn example() -> Calibration {
        let measured = |rate: f64| Measured::of(vec![rate * 0.9, rate, rate * 1.2], 4, "example");
        Calibration {
            version: VERSION,
            taken_s: 1_700_000_000,
            tidepool: "0.1.0".to_owned(),
            warnings: vec!["network: noisy".to_owned()],
            busy: false,
            machine: Machine {
                host: "elsewhere".to_owned(),
                kernel: "6.0".to_owned(),
                processor: "an old one".to_owned(),
                processors: 3,
                memory_bytes: 1 << 30,
                load: 0.5,
            },
            memory: Some(measured(6e9)),
            memory_one_stream: None,
            memory_write: None,
            memory_latency_us: Some(1.5),
            disk: None,
            pfs: Some(Volume {
                directory: "/pfs".to_owned(),
                file_system: "lustre".to_owned(),
                direct: true,
                latency_us: 400.0,
                read: measured(1e9),
                write: measured(5e8),
            }),
            network: Some(measured(1.2e9)),
        }
    }

    #[test]
    fn a_file_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibration.toml");
        example().write(&path).unwrap();
        let found = Calibration::read(&path).unwrap();
        assert_eq!(format!("{found:?}"), format!("{:?}", example()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file");
        assert!(example().write(&directory.path().join("missing/calibration.toml")).is_err());
    }

    #[test]
    fn another_machine_is_told_and_so_are_old_warnings() {
        let origin = example().origin();
        assert!(origin.other_machine);
        let notes = origin.notes.join("\n");
        assert!(notes.contains("host elsewhere") && notes.contains("network: noisy"), "{notes}");
    }

    #[test]
    fn other_versions_and_unknown_keys_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibration.toml");
        Calibration { version: 2, ..example() }.write(&path).unwrap();
        let error = Calibration::read(&path).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
        std::fs::write(&path, "version = 1\nspeed = 3").unwrap();
        assert!(Calibration::read(&path).is_err());
        assert!(Calibration::read(&directory.path().join("none")).is_err());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[1.0, 2.0, 4.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 5.0]), 3.0);
        let measured = Measured::of(vec![4.0, 1.0, 2.0], 1, "");
        assert_eq!((measured.bytes_per_second, measured.spread()), (2.0, 1.5));
    }
}
