//! Turns predicted times into advice in plain words. Says so where another level is not worth it.

use serde::{Deserialize, Serialize};

use crate::quantity::Seconds;
use crate::throughput::Resource;
use crate::workload::{Choice, PlanInput, StorageChoice, left_memory};

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The simplest storage that is within the asked gain of the fastest one; nothing where the
    /// rates are too doubtful to say.
    pub use_storage: Option<StorageChoice>,
    /// Whether a memory level is worth having; nothing where the rates are too doubtful to say.
    pub worth_it: Option<bool>,
    /// Time on the next best without Tidepool over the time with it.
    pub speedup: f64,
    /// The advice and its reason, one or two sentences.
    pub text: String,
}

fn find(choices: &[Choice], storage: StorageChoice) -> Option<&Choice> {
    choices.iter().find(|choice| choice.storage == storage)
}

/// Weighs the choices. The PFS is there anyway and the page cache costs nothing, so they win where
/// they come close.
pub(crate) fn advise(input: &PlanInput, choices: &[Choice]) -> Advice {
    let two_level = find(choices, StorageChoice::TwoLevel).expect("two levels are always a choice");
    let pfs = find(choices, StorageChoice::Pfs).expect("the PFS is always a choice");
    let page_cache = find(choices, StorageChoice::PageCache);
    let hdfs = find(choices, StorageChoice::Hdfs);
    let close = |choice: &Choice| choice.total.get() <= two_level.total.get() * (1.0 + input.worth);
    let without = [Some(pfs), page_cache, hdfs];
    let next_best = without.into_iter().flatten().map(|choice| choice.total.get());
    let speedup = ratio(next_best.fold(f64::INFINITY, f64::min), two_level.total);
    let advice = |storage, text| Advice {
        use_storage: Some(storage),
        worth_it: Some(storage == StorageChoice::TwoLevel),
        speedup,
        text,
    };
    if let Some(hdfs) =
        hdfs.filter(|hdfs| hdfs.total.get() * (1.0 + input.worth) < two_level.total.get())
    {
        let text = format!(
            "Not worth it: HDFS on local disks (nodes: {}) takes {}, Tidepool here {}. The limit \
             is the {}.",
            input.workload.nodes,
            hdfs.total,
            two_level.total,
            limit(two_level)
        );
        return advice(StorageChoice::Hdfs, text);
    }
    if close(pfs) {
        let text = format!(
            "Not worth it: the bare PFS would do ({} against {}). {}",
            pfs.total,
            two_level.total,
            why_not(input, two_level)
        );
        return advice(StorageChoice::Pfs, text);
    }
    if let Some(page_cache) = page_cache.filter(|choice| close(choice)) {
        let text = format!(
            "Not worth it: the page cache would do ({} against {}). Each node's part of the set \
             fits in the memory that jobs leave.",
            page_cache.total, two_level.total
        );
        return advice(StorageChoice::PageCache, text);
    }
    let text = format!(
        "Worth it: {}, against {} on the next best storage: {speedup:.1} times as fast, with \
         {:.0}% of the later reads from memory. Then the limit is the {}.",
        two_level.total,
        next_best_name(choices),
        two_level.hits.get() * 100.0,
        limit(two_level)
    );
    advice(StorageChoice::TwoLevel, text)
}

fn ratio(time: f64, base: Seconds) -> f64 {
    if base.get() == 0.0 { 1.0 } else { time / base.get() }
}

fn limit(choice: &Choice) -> &'static str {
    choice.bottleneck().map_or("nothing to do", Resource::name)
}

fn next_best_name(choices: &[Choice]) -> String {
    let others = choices.iter().filter(|choice| choice.storage != StorageChoice::TwoLevel);
    let best = others.min_by(|one, other| one.total.get().total_cmp(&other.total.get()));
    best.map_or_else(String::new, |best| format!("{} ({})", best.total, best.storage.name()))
}

/// The reason why memory gains little, the strongest first.
fn why_not(input: &PlanInput, two_level: &Choice) -> String {
    let workload = &input.workload;
    let longest = two_level.bottleneck();
    let writes = two_level.phases.iter().filter(|phase| phase.name == "writes");
    let writing: f64 = writes.map(|phase| phase.time.get()).sum();
    if workload.passes == 1 {
        return "Data that is read once comes from the PFS once, whatever lies above it."
            .to_owned();
    }
    if longest == Some(Resource::Processor) {
        return "The processors are the limit, not storage.".to_owned();
    }
    if writing * 2.0 > two_level.total.get() {
        return "Most of the time goes into writes, which end on the PFS either way.".to_owned();
    }
    let left = left_memory(workload);
    let taken = workload.memory_per_node.less(left);
    if taken.get() * 2.0 > workload.memory_per_node.get() {
        return format!(
            "Jobs take {taken} of the {} a node has, and {left} hold only {:.0}% of the reads.",
            workload.memory_per_node,
            two_level.hits.get() * 100.0
        );
    }
    if two_level.hits.get() < 0.5 {
        return format!(
            "{left} a node hold only {:.0}% of the reads.",
            two_level.hits.get() * 100.0
        );
    }
    "The PFS is nearly as fast as memory for these nodes.".to_owned()
}
