//! Doubts about the rates of a calibration: measured with too wide a spread to decide by, or
//! contradicting each other. Only rates that the user did not override count.

use tidepool_model::{BytesPerSecond, Doubt, Rate};
use tidepool_proto::Result;

use crate::calibrate::file::{Calibration, Measured};
use crate::rates::Rates;

/// Spread of the repeats, in parts of the median, beyond which a rate decides nothing by itself.
const SPREAD_MAX: f64 = 0.5;
/// All threads together below this part of one thread: something else used the processors.
const ALL_THREADS_MIN: f64 = 0.8;

/// Rates of `calibration` that are not in `given`.
fn used<'a>(
    calibration: &'a Calibration,
    given: &Rates,
) -> impl Iterator<Item = (Rate, &'a Measured)> + use<'a> {
    let pfs =
        calibration.pfs.as_ref().filter(|_| given.pfs.is_none() && given.data_nodes.is_none());
    let disk = calibration.disk.as_ref();
    let memory = calibration.memory.as_ref().filter(|_| given.memory.is_none());
    let memory_write = calibration.memory_write.as_ref();
    let candidates = [
        (Rate::Network, calibration.network.as_ref().filter(|_| given.network.is_none())),
        (Rate::MemoryRead, memory),
        (
            Rate::MemoryWrite,
            memory_write.filter(|_| given.memory.is_none() && given.memory_write.is_none()),
        ),
        (Rate::DiskRead, disk.map(|disk| &disk.read).filter(|_| given.disk_read.is_none())),
        (Rate::DiskWrite, disk.map(|disk| &disk.write).filter(|_| given.disk_write.is_none())),
        (Rate::PfsRead, pfs.map(|pfs| &pfs.read)),
        (Rate::PfsWrite, pfs.map(|pfs| &pfs.write).filter(|_| given.pfs_write.is_none())),
    ];
    candidates.into_iter().filter_map(|(rate, measured)| Some((rate, measured?)))
}

/// Rates of `calibration` that are in doubt and not in `given`.
pub fn doubts(calibration: &Calibration, given: &Rates) -> Result<Vec<Doubt>> {
    let doubt = |(rate, measured): (Rate, &Measured)| {
        let lowest = BytesPerSecond::new(measured.lowest)?;
        Ok(Doubt { rate, lowest, highest: BytesPerSecond::new(measured.highest)? })
    };
    used(calibration, given)
        .filter(|(_, measured)| measured.spread() > SPREAD_MAX)
        .map(doubt)
        .collect()
}

/// Why the rates are none to decide by: of a busy machine, or what the memory of an idle node
/// cannot be. One sentence without an end each.
pub fn contradictions(calibration: &Calibration, given: &Rates) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if calibration.busy && used(calibration, given).next().is_some() {
        found.push("the machine was busy when it was calibrated".to_owned());
    }
    let Some(memory) = calibration.memory.as_ref().filter(|_| given.memory.is_none()) else {
        return Ok(found);
    };
    let all = memory.bytes_per_second;
    let mut slower = |than: &str, other: f64| -> Result<()> {
        let (all, other) = (BytesPerSecond::new(all)?, BytesPerSecond::new(other)?);
        found
            .push(format!("memory with all threads ({all}) measured slower than {than} ({other})"));
        Ok(())
    };
    if let Some(one) = &calibration.memory_one_stream
        && all < ALL_THREADS_MIN * one.bytes_per_second
    {
        slower("with one", one.bytes_per_second)?;
    }
    // Caches of the system may have answered where there is no direct I/O.
    if let Some(disk) = calibration.disk.as_ref().filter(|disk| disk.direct)
        && all < disk.read.bytes_per_second
    {
        slower("the local disk", disk.read.bytes_per_second)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::file::tests::example;

    #[test]
    fn rates_of_a_busy_machine_decide_nothing_unless_they_are_given() {
        let mut calibration = example();
        let given = Rates::default();
        assert_eq!(contradictions(&calibration, &given).unwrap(), Vec::<String>::new());
        calibration.busy = true;
        let found = contradictions(&calibration, &given).unwrap();
        assert_eq!(found, ["the machine was busy when it was calibrated"]);
        let all = Rates { pfs: given_rate(), memory: given_rate(), ..Rates::default() };
        let all = Rates { pfs_write: given_rate(), memory_write: given_rate(), ..all };
        let all = Rates { network: given_rate(), ..all };
        assert_eq!(contradictions(&calibration, &all).unwrap(), Vec::<String>::new());
    }

    fn given_rate() -> Option<BytesPerSecond> {
        BytesPerSecond::new(1e9).ok()
    }
}
