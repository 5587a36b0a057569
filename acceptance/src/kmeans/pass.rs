//! One iteration over all files: several threads, each with a file of its own at a time, read in
//! pieces of 1 MiB. Sums are joined in the order of the files, so the result does not depend on
//! the threads: two ways to read the same bytes must give the same bits.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

use super::cluster::{Centroids, Sums, add_records, first_centroids};
use super::data::{DataSet, PIECE_BYTES, RECORD_BYTES};
use crate::shaping::TokenBucket;

/// Reads all files once and sums up.
pub fn run(
    data: &DataSet,
    centroids: &Centroids,
    threads: usize,
    limit: Option<&TokenBucket>,
) -> Result<Sums> {
    let paths = data.paths();
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Sums>>>> =
        paths.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| worker(&paths, centroids, limit, &next, &results));
        }
    });
    let mut total = Sums::default();
    for (path, result) in paths.iter().zip(results) {
        let result = result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sums = result.context("a file was not read")?;
        total.merge(&sums.with_context(|| path.display().to_string())?);
    }
    verify(data, &total)?;
    Ok(total)
}

/// The first centroids, from the beginning of the first file.
pub fn start(data: &DataSet) -> Result<Centroids> {
    let first = data.paths().first().cloned().context("the data set has no file")?;
    let mut sample = vec![0; PIECE_BYTES];
    File::open(first)?.read_exact(&mut sample)?;
    Ok(first_centroids(&sample))
}

fn worker(
    paths: &[PathBuf],
    centroids: &Centroids,
    limit: Option<&TokenBucket>,
    next: &AtomicUsize,
    results: &[Mutex<Option<Result<Sums>>>],
) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(path) = paths.get(index) else { return };
        let sums = one_file(path, centroids, limit, &mut piece);
        let mut slot = results[index].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *slot = Some(sums);
    }
}

fn one_file(
    path: &Path,
    centroids: &Centroids,
    limit: Option<&TokenBucket>,
    piece: &mut [u8],
) -> Result<Sums> {
    let mut file = File::open(path)?;
    let mut sums = Sums::default();
    let mut filled = 0;
    loop {
        let count = file.read(&mut piece[filled..])?;
        if let Some(limit) = limit {
            limit.take(count as u64);
        }
        filled += count;
        let whole = filled - filled % RECORD_BYTES;
        add_records(&piece[..whole], centroids, &mut sums);
        piece.copy_within(whole..filled, 0);
        filled -= whole;
        if count == 0 {
            break;
        }
    }
    if filled > 0 {
        bail!("ends in the middle of a record");
    }
    Ok(sums)
}

fn verify(data: &DataSet, sums: &Sums) -> Result<()> {
    let records = data.bytes / RECORD_BYTES as u64;
    let numbers = (0..records).fold(0u64, |sum, number| sum.wrapping_add(number));
    if sums.damaged > 0 || sums.records() != records || sums.numbers != numbers {
        bail!(
            "read {} records instead of {records}, {} of them damaged",
            sums.records(),
            sums.damaged
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::cluster::{Centroids, Sums};
    use super::super::data::{CLUSTERS, DIMENSIONS, DataSet, centre, read_record};
    use super::{run, start};

    const SEED: u64 = 42;

    fn data(directory: &std::path::Path) -> DataSet {
        DataSet::generate(directory, 3 << 20, 1 << 20, SEED).unwrap()
    }

    #[test]
    fn finds_the_centres_that_the_data_was_drawn_around() {
        let directory = tempfile::tempdir().unwrap();
        let data = data(directory.path());
        let mut centroids = start(&data).unwrap();
        for _ in 0..8 {
            centroids = run(&data, &centroids, 3, None).unwrap().means(&centroids);
        }
        for cluster in 0..CLUSTERS {
            let truth = centre(SEED, cluster);
            let nearest = centroids
                .points()
                .iter()
                .map(|point| point.iter().zip(&truth).map(|(a, b)| (a - b).abs()).sum::<f32>())
                .fold(f32::INFINITY, f32::min);
            assert!(nearest / (DIMENSIONS as f32) < 0.5, "cluster {cluster}: off by {nearest}");
        }
    }

    #[test]
    fn equals_plain_arithmetic_and_does_not_depend_on_threads() {
        let directory = tempfile::tempdir().unwrap();
        let data = data(directory.path());
        let centroids = start(&data).unwrap();
        let one = run(&data, &centroids, 1, None).unwrap();
        assert_eq!(one, run(&data, &centroids, 4, None).unwrap());
        let plain = plainly(&data, &centroids);
        assert_eq!(one.counts, plain.counts);
        assert!((one.inertia / plain.inertia - 1.0).abs() < 1e-4);
        for (left, right) in one.features.iter().zip(&plain.features) {
            for (left, right) in left.iter().zip(right) {
                assert!((left - right).abs() <= 1e-6 * right.abs());
            }
        }
    }

    fn plainly(data: &DataSet, centroids: &Centroids) -> Sums {
        let mut sums = Sums::default();
        let points = centroids.points();
        for path in data.paths() {
            let bytes = std::fs::read(path).unwrap();
            for record in bytes.as_chunks().0 {
                let features = read_record(record).features;
                let distance = |point: &[f32; DIMENSIONS]| -> f64 {
                    point.iter().zip(&features).map(|(a, b)| f64::from(a - b).powi(2)).sum()
                };
                let nearest = (0..CLUSTERS)
                    .min_by(|a, b| distance(&points[*a]).total_cmp(&distance(&points[*b])))
                    .unwrap();
                sums.counts[nearest] += 1;
                sums.inertia += distance(&points[nearest]);
                for (sum, value) in sums.features[nearest].iter_mut().zip(features) {
                    *sum += f64::from(value);
                }
            }
        }
        sums
    }

    #[test]
    fn a_flipped_bit_or_a_missing_record_fails_the_pass() {
        let directory = tempfile::tempdir().unwrap();
        let data = data(directory.path());
        let centroids = start(&data).unwrap();
        let path = &data.paths()[1];
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0xff], 70_003).unwrap();
        assert!(run(&data, &centroids, 2, None).is_err());
        file.set_len((1 << 20) - 128).unwrap();
        assert!(run(&data, &centroids, 2, None).is_err());
    }
}
