//! Gradient descent in plain arithmetic, to compare MLlib's with: the same steps over the same
//! records, read as plain files.

use std::io::Read;

use anyhow::{Result, ensure};

use crate::kmeans::data::{DIMENSIONS, DataSet, PIECE_BYTES, RECORD_BYTES, read_record};

/// What is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Logistic regression on the class.
    Logistic,
    /// Linear regression on the last feature.
    Linear,
    /// Support vector machine on the class.
    Svm,
}

/// In the order of `SparkRegression`.
pub const KINDS: [Kind; 3] = [Kind::Logistic, Kind::Linear, Kind::Svm];

const WEIGHTS: usize = DIMENSIONS - 1;
const SCALE: f64 = 100.0;
const STEP: f64 = 0.5;

impl Kind {
    /// As the programs call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Logistic => "logistic",
            Kind::Linear => "linear",
            Kind::Svm => "svm",
        }
    }

    /// The factor of the features in the gradient of one record.
    fn factor(self, product: f64, cluster: u32, last: f64) -> f64 {
        let label = if cluster < 5 { 1.0 } else { 0.0 };
        match self {
            Kind::Logistic => 1.0 / (1.0 + (-product).exp()) - label,
            Kind::Linear => product - last,
            Kind::Svm => {
                let side = 2.0 * label - 1.0;
                if side * product < 1.0 { -side } else { 0.0 }
            }
        }
    }
}

/// The weights after `iterations` steps over all records; the length of a step falls with the root
/// of its number.
pub fn descend(data: &DataSet, kind: Kind, iterations: u32) -> Result<[f64; WEIGHTS]> {
    let mut weights = [0.0; WEIGHTS];
    for iteration in 1..=iterations {
        let (gradient, count) = gradient(data, kind, &weights)?;
        let step = STEP / f64::from(iteration).sqrt() / count as f64;
        for (weight, slope) in weights.iter_mut().zip(gradient) {
            *weight -= step * slope;
        }
    }
    Ok(weights)
}

fn gradient(data: &DataSet, kind: Kind, weights: &[f64; WEIGHTS]) -> Result<([f64; WEIGHTS], u64)> {
    let mut sum = [0.0; WEIGHTS];
    let mut count = 0;
    let mut piece = vec![0; PIECE_BYTES];
    for path in data.paths() {
        let mut file = std::fs::File::open(path)?;
        let pieces = file.metadata()?.len() / PIECE_BYTES as u64;
        for _ in 0..pieces {
            file.read_exact(&mut piece)?;
            for record in piece.as_chunks::<RECORD_BYTES>().0 {
                let record = read_record(record);
                ensure!(record.is_sound, "record {} is damaged", record.number);
                let features: [f64; DIMENSIONS] =
                    std::array::from_fn(|at| f64::from(record.features[at]) / SCALE);
                let product = weights.iter().zip(&features).map(|(w, x)| w * x).sum();
                let factor = kind.factor(product, record.cluster, features[WEIGHTS]);
                for (slope, value) in sum.iter_mut().zip(&features) {
                    *slope += factor * value;
                }
                count += 1;
            }
        }
    }
    Ok((sum, count))
}

#[cfg(test)]
mod tests {
    use super::{KINDS, descend};
    use crate::kmeans::data::DataSet;

    #[test]
    fn every_kind_has_its_own_weights_and_steps_move_them() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataSet::generate(directory.path(), 1 << 20, 1 << 20, 7).unwrap();
        let weights: Vec<_> = KINDS.iter().map(|kind| descend(&data, *kind, 2).unwrap()).collect();
        assert_ne!(weights[0], weights[1]);
        assert_ne!(weights[1], weights[2]);
        for kind in KINDS {
            assert_ne!(descend(&data, kind, 1).unwrap(), descend(&data, kind, 2).unwrap());
        }
    }
}
