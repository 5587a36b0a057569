//! The arithmetic of K-means: assigning records to centroids and summing them up. Vectorised by
//! the compiler over the clusters, with a wider instruction set where the processor has it.

use super::data::{CLUSTERS, DIMENSIONS, RECORD_BYTES, read_record};

/// Clusters padded to whole vectors.
const LANES: usize = 16;
const _: () = assert!(CLUSTERS <= LANES, "all clusters fit the lanes");

/// Centroids, one array a dimension, so that one instruction handles several clusters.
#[derive(Clone, Debug, PartialEq)]
pub struct Centroids([[f32; LANES]; DIMENSIONS]);

impl Centroids {
    /// From one array a cluster.
    pub fn new(points: &[[f32; DIMENSIONS]; CLUSTERS]) -> Self {
        // Lanes without a cluster lie so far off that no record is theirs.
        let mut lanes = [[1e18; LANES]; DIMENSIONS];
        for (cluster, point) in points.iter().enumerate() {
            for (dimension, value) in point.iter().enumerate() {
                lanes[dimension][cluster] = *value;
            }
        }
        Centroids(lanes)
    }

    /// One array a cluster.
    pub fn points(&self) -> [[f32; DIMENSIONS]; CLUSTERS] {
        std::array::from_fn(|cluster| std::array::from_fn(|dimension| self.0[dimension][cluster]))
    }
}

/// Sums over some of the records.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Sum of the features by cluster.
    pub features: [[f64; DIMENSIONS]; CLUSTERS],
    /// Records by cluster.
    pub counts: [u64; CLUSTERS],
    /// Sum of the squared distances to the nearest centroid.
    pub inertia: f64,
    /// Records whose bytes are not those that were written.
    pub damaged: u64,
    /// Sum of the numbers of the records, which tells a missing one.
    pub numbers: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            features: [[0.0; DIMENSIONS]; CLUSTERS],
            counts: [0; CLUSTERS],
            inertia: 0.0,
            damaged: 0,
            numbers: 0,
        }
    }
}

impl Sums {
    /// Adds the sums of other records.
    pub fn merge(&mut self, other: &Sums) {
        for (mine, theirs) in self.features.iter_mut().zip(&other.features) {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.inertia += other.inertia;
        self.damaged += other.damaged;
        self.numbers = self.numbers.wrapping_add(other.numbers);
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The means; a cluster without records keeps its centroid.
    pub fn means(&self, before: &Centroids) -> Centroids {
        let mut points = before.points();
        for (cluster, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let sums = &self.features[cluster];
            points[cluster] =
                std::array::from_fn(|dimension| (sums[dimension] / *count as f64) as f32);
        }
        Centroids::new(&points)
    }
}

/// Assigns whole records to centroids and adds them to `sums`.
pub fn add_records(bytes: &[u8], centroids: &Centroids, sums: &mut Sums) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the instructions that the function is compiled for.
        unsafe { add_records_wide(bytes, centroids, sums) };
        return;
    }
    add_records_here(bytes, centroids, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn add_records_wide(bytes: &[u8], centroids: &Centroids, sums: &mut Sums) {
    add_records_here(bytes, centroids, sums);
}

#[inline(always)]
fn add_records_here(bytes: &[u8], centroids: &Centroids, sums: &mut Sums) {
    let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
    for record in records {
        let record = read_record(record);
        let mut distances = [0f32; LANES];
        for (value, lanes) in record.features.iter().zip(&centroids.0) {
            for (distance, centroid) in distances.iter_mut().zip(lanes) {
                let difference = value - centroid;
                *distance += difference * difference;
            }
        }
        let mut nearest = 0;
        for cluster in 1..CLUSTERS {
            if distances[cluster] < distances[nearest] {
                nearest = cluster;
            }
        }
        for (sum, value) in sums.features[nearest].iter_mut().zip(&record.features) {
            *sum += f64::from(*value);
        }
        sums.counts[nearest] += 1;
        sums.inertia += f64::from(distances[nearest]);
        sums.damaged += u64::from(!record.is_sound);
        sums.numbers = sums.numbers.wrapping_add(record.number);
    }
}

/// First centroids: of the sample, the record farthest from all chosen so far, over and over.
pub fn first_centroids(sample: &[u8]) -> Centroids {
    let (records, _) = sample.as_chunks::<RECORD_BYTES>();
    let points: Vec<[f32; DIMENSIONS]> =
        records.iter().map(|record| read_record(record).features).collect();
    let mut nearest = vec![f32::INFINITY; points.len()];
    let mut chosen = [[0.0; DIMENSIONS]; CLUSTERS];
    let mut next = 0;
    for slot in &mut chosen {
        *slot = points[next];
        for (point, nearest) in points.iter().zip(&mut nearest) {
            let distance: f32 = point.iter().zip(slot.iter()).map(|(a, b)| (a - b) * (a - b)).sum();
            *nearest = nearest.min(distance);
        }
        let farthest = nearest.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        next = farthest.map_or(0, |(index, _)| index);
    }
    Centroids::new(&chosen)
}
