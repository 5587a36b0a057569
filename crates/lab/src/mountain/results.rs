//! Results of a mountain: kept as JSON after every point, so that an interruption loses one point
//! at most, and as CSV. A later run with the same settings goes on where this one ended.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidepool_model::MountainSetting;
use tidepool_proto::{Error, ErrorKind, Result};

use super::arguments::Via;
use crate::calibrate::file::median;
use crate::calibrate::machine::Machine;

/// Version of the file's form.
pub const VERSION: u32 = 1;

/// What decides the points; results of other settings are never mixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// Directory of the PFS.
    pub pfs: String,
    /// Rate that the PFS was held to, in bytes per second.
    pub pfs_rate: Option<f64>,
    /// Farthest read-ahead of the node in bytes, where it was not the node's own.
    pub read_ahead_bytes: Option<u64>,
    /// Capacity of the store in bytes.
    pub capacity_bytes: u64,
    /// Data sizes in bytes, rising.
    pub sizes: Vec<u64>,
    /// Skips in bytes, rising.
    pub skips: Vec<u64>,
    /// Bytes of a read.
    pub request_bytes: u64,
    /// Timed passes a point.
    pub repeats: u32,
    /// How the file was read.
    pub via: Via,
}

/// One point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Data size in bytes.
    pub size_bytes: u64,
    /// Skip in bytes.
    pub skip_bytes: u64,
    /// Bytes per second of each timed pass.
    pub passes: Vec<f64>,
    /// Median of them.
    pub bytes_per_second: f64,
    /// Bytes given less bytes that the node read from the PFS, as a share; read-ahead is no hit.
    /// Unknown where skips make the node read more than it gives.
    pub hits: Option<f64>,
    /// What the model says.
    pub predicted: f64,
    /// f of the model.
    pub predicted_hits: f64,
    /// Prediction over measurement, less 1.
    pub error: f64,
}

/// A check of equation (7).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareCheck {
    /// f that was set up.
    pub f: f64,
    /// f that was counted.
    pub counted: f64,
    /// Bytes per second of all readers together, median.
    pub bytes_per_second: f64,
    /// What equation (7) says.
    pub predicted: f64,
    /// Prediction over measurement, less 1.
    pub error: f64,
}

/// Everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// What decides the points.
    pub settings: Settings,
    /// Where it was measured.
    pub machine: Machine,
    /// What the predictions are made from, measured before the points on files of its own.
    pub probe: MountainSetting,
    /// Points so far.
    pub points: Vec<Point>,
    /// Checks of equation (7).
    pub shares: Vec<ShareCheck>,
    /// Why figures may not hold, one sentence for each time that it was measured.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The middle of the errors without their signs, and none of none.
pub fn median_error(errors: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
    sizes.sort_by(f64::total_cmp);
    (!sizes.is_empty()).then(|| median(&sizes))
}

impl Results {
    /// The file in a directory.
    pub fn path(directory: &Path) -> PathBuf {
        directory.join("mountain.json")
    }

    /// Earlier results in `directory`, if there are some; refuses those of other settings.
    pub fn resume(directory: &Path, settings: &Settings) -> Result<Option<Self>> {
        let path = Self::path(directory);
        let operation = || format!("reading earlier results in {}", path.display());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::pfs(operation(), source)),
        };
        let refuse = |detail: String| {
            Error::new(ErrorKind::InvalidInput, operation(), detail)
                .remedy("give another --output directory, or --fresh to begin anew")
        };
        let found: Results =
            serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        if found.settings != *settings {
            return Err(refuse("they are of other settings".to_owned()));
        }
        Ok(Some(found))
    }

    /// Writes JSON and CSV, each whole or not at all.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "writing the results", error.to_string())
        })?;
        for (path, text) in
            [(Self::path(directory), json), (directory.join("mountain.csv"), self.csv())]
        {
            let temporary = path.with_extension("part");
            let written =
                std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
            written.map_err(|source| Error::pfs(format!("writing {}", path.display()), source))?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "size_bytes,skip_bytes,median_bytes_per_second,lowest,highest,passes,hits,\
             predicted_bytes_per_second,predicted_hits,error\n",
        );
        for point in &self.points {
            let lowest = point.passes.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = point.passes.iter().copied().fold(0.0, f64::max);
            let hits = point.hits.map(|hits| format!("{hits:.4}")).unwrap_or_default();
            text += &format!(
                "{},{},{:.0},{lowest:.0},{highest:.0},{},{hits},{:.0},{:.4},{:.4}\n",
                point.size_bytes,
                point.skip_bytes,
                point.bytes_per_second,
                point.passes.len(),
                point.predicted,
                point.predicted_hits,
                point.error
            );
        }
        text
    }

    /// The point of a size and a skip.
    pub fn point(&self, size_bytes: u64, skip_bytes: u64) -> Option<&Point> {
        self.points
            .iter()
            .find(|point| (point.size_bytes, point.skip_bytes) == (size_bytes, skip_bytes))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tidepool_model::{Bytes, BytesPerSecond, Policy, Seconds, predict};

    /// A whole mountain that follows the model exactly.
    pub fn example() -> Results {
        const MIB: u64 = 1 << 20;
        let probe = MountainSetting {
            capacity: Bytes::whole(128 * MIB),
            block: Bytes::whole(4 * MIB),
            request: Bytes::whole(MIB),
            memory: BytesPerSecond::new(8e9).unwrap(),
            opening: Seconds::default(),
            memory_latency: Seconds::new(2e-6).unwrap(),
            pfs: BytesPerSecond::new(4e8).unwrap(),
            pfs_latency: Seconds::new(1e-3).unwrap(),
            transfers: 4,
            policy: Policy::Cyclic,
        };
        let settings = Settings {
            version: VERSION,
            pfs: "/pfs".to_owned(),
            pfs_rate: None,
            read_ahead_bytes: None,
            capacity_bytes: 128 * MIB,
            sizes: [32, 64, 128, 160, 256, 512].map(|size| size * MIB).to_vec(),
            skips: [0, 1, 4, 16, 64].map(|skip| skip * MIB).to_vec(),
            request_bytes: MIB,
            repeats: 1,
            via: Via::Library,
        };
        let mut points = Vec::new();
        for &size_bytes in &settings.sizes {
            for &skip_bytes in &settings.skips {
                let found = predict(&probe, size_bytes, skip_bytes).unwrap();
                let rate = found.rate.get();
                points.push(Point {
                    size_bytes,
                    skip_bytes,
                    passes: vec![rate],
                    bytes_per_second: rate,
                    hits: Some(found.hits.get()),
                    predicted: rate,
                    predicted_hits: found.hits.get(),
                    error: 0.0,
                });
            }
        }
        let machine = crate::calibrate::machine::describe();
        Results { settings, machine, probe, points, shares: Vec::new(), warnings: Vec::new() }
    }

    #[test]
    fn partial_results_are_found_again_and_other_settings_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut results = example();
        results.points.truncate(3);
        assert!(Results::resume(directory.path(), &results.settings).unwrap().is_none());
        results.write(directory.path()).unwrap();
        let found = Results::resume(directory.path(), &results.settings).unwrap().unwrap();
        assert_eq!(found.points.len(), 3);
        let other = Settings { repeats: 2, ..results.settings.clone() };
        let error = Results::resume(directory.path(), &other).unwrap_err();
        assert!(error.to_string().contains("--fresh"), "{error}");
        let csv = std::fs::read_to_string(directory.path().join("mountain.csv")).unwrap();
        assert_eq!(csv.lines().count(), 4);
        std::fs::write(Results::path(directory.path()), "{").unwrap();
        assert!(Results::resume(directory.path(), &results.settings).is_err());
        assert!(results.write(&directory.path().join("missing")).is_err());
    }

    #[test]
    fn errors_count_without_their_signs() {
        assert_eq!(median_error([-0.2, 0.1, 0.3].into_iter()), Some(0.2));
        assert_eq!(median_error(std::iter::empty()), None);
    }
}
