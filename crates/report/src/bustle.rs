//! Tells whether a machine was quiet enough for what was measured on it: the load against its
//! processors at the start and at the end, and what other programs used of the processors
//! meanwhile. Reads `/proc` only.

use std::fs;

use serde::{Deserialize, Serialize};

/// Load a processor at the start beyond which a machine counts as busy.
const LOAD_MAX: f64 = 0.5;
/// Part of the processors' time that others may use.
const OTHERS_MAX: f64 = 0.2;
/// The same where the load at the start was high as well. A load alone may be what went before,
/// such as the compiler.
const OTHERS_BESIDE_LOAD_MAX: f64 = 0.1;
/// Part of the processors' time that a host may take from a virtual machine.
const STOLEN_MAX: f64 = 0.05;
/// Parent of the kernel's own threads.
const KERNEL_THREADS: u32 = 2;

/// What a machine did while something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bustle {
    /// Processors that the system may use.
    pub processors: u32,
    /// Processes that wanted a processor in the minute before the start.
    pub load_at_start: f64,
    /// The same in the minute before the end; what was measured is among them.
    pub load_at_end: f64,
    /// Part of the processors' time that other programs used.
    pub others: Option<f64>,
    /// Part of the processors' time that the host of a virtual machine gave to others.
    pub stolen: Option<f64>,
}

/// Processor time, in ticks of the system's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    /// Of all processors, idle time included.
    total: u64,
    /// In use.
    used: u64,
    /// Taken by the host.
    stolen: u64,
    /// Used by this process, what it started, and the kernel's threads that work for it.
    own: u64,
}

/// Watches the machine from its making to its end.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    load: f64,
    before: Option<Times>,
    /// Ticks of processes that are no children of this one.
    counted: i64,
}

impl Watch {
    /// Begins.
    pub fn start() -> Self {
        Watch { load: load().unwrap_or_default(), before: Times::now(), counted: 0 }
    }

    /// What this process does from now on is ours, though it is no child of this one: a daemon that
    /// runs already. Its work is taken in by [`Watch::finish`].
    pub fn begin(&mut self, process_id: u32) {
        self.counted -= ticks(process_id);
    }

    /// What this process did since it began, or since [`Watch::begin`], was ours.
    pub fn finish(&mut self, process_id: u32) {
        self.counted += ticks(process_id);
    }

    /// What the machine did since the start.
    pub fn end(&self) -> Bustle {
        let mut bustle = Bustle {
            processors: processors(),
            load_at_start: self.load,
            load_at_end: load().unwrap_or_default(),
            others: None,
            stolen: None,
        };
        if let Some((before, now)) = self.before.zip(Times::now())
            && now.total > before.total
        {
            let part = |ticks: u64| ticks as f64 / (now.total - before.total) as f64;
            let own = now.own.saturating_sub(before.own).saturating_add_signed(self.counted);
            bustle.others = Some(part(now.used.saturating_sub(before.used).saturating_sub(own)));
            bustle.stolen = Some(part(now.stolen.saturating_sub(before.stolen)));
        }
        bustle
    }
}

impl Bustle {
    /// Only what is known at the start.
    pub fn of_load(processors: u32, load: f64) -> Self {
        Bustle { processors, load_at_start: load, load_at_end: load, ..Bustle::default() }
    }

    /// A sentence where the machine was too busy for the figures to hold.
    pub fn note(&self) -> Option<String> {
        let others = self.others.unwrap_or(f64::INFINITY);
        let loaded = self.load_at_start > LOAD_MAX * f64::from(self.processors.max(1));
        let loaded = loaded && others > OTHERS_BESIDE_LOAD_MAX;
        let shared = self.others.is_some_and(|others| others > OTHERS_MAX);
        let stolen = self.stolen.filter(|stolen| *stolen > STOLEN_MAX);
        if !loaded && !shared && stolen.is_none() {
            return None;
        }
        let mut text = format!(
            "The machine was busy, these figures do not hold: a load of {:.1} on {} processor{} at \
             the start, {:.1} at the end",
            self.load_at_start,
            self.processors,
            if self.processors == 1 { "" } else { "s" },
            self.load_at_end
        );
        if let Some(others) = self.others {
            text +=
                &format!("; other programs used {:.0} % of the processors' time", others * 100.0);
        }
        if let Some(stolen) = stolen {
            text += &format!("; the host gave {:.0} % of it to other machines", stolen * 100.0);
        }
        Some(text + ". Measure again when nothing else runs.")
    }
}

/// Processes that wanted a processor during the last minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

impl Times {
    fn now() -> Option<Times> {
        let mut times = Times::of(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = std::process::id();
        let all = processes();
        times.own = all.iter().filter(|one| one.is_ours(own, &all)).map(|one| one.ticks).sum();
        Some(times)
    }

    /// Of the text of `/proc/stat`.
    fn of(text: &str) -> Option<Times> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // user nice system idle iowait irq softirq steal; guests are within user.
        let [user, nice, system, idle, waiting, irq, softirq, stolen] = *ticks.first_chunk()?;
        let used = user + nice + system + irq + softirq;
        Some(Times { total: used + idle + waiting + stolen, used, stolen, own: 0 })
    }
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    /// Used by it and by its children that have ended.
    ticks: u64,
}

impl Process {
    /// This process, one that it started, or a thread of the kernel.
    fn is_ours(&self, own: u32, all: &[Process]) -> bool {
        let mut at = *self;
        // A tree of processes is never this deep; the list may change while it is read.
        for _ in 0..64 {
            if at.id == own || at.id == KERNEL_THREADS || at.parent == KERNEL_THREADS {
                return true;
            }
            match all.iter().find(|other| other.id == at.parent) {
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    }
}

fn ticks(id: u32) -> i64 {
    process(id).map_or(0, |found| found.ticks.cast_signed())
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(process).collect()
}

fn process(id: u32) -> Option<Process> {
    parsed(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Of the text of `/proc/ID/stat`; the name in brackets may contain anything.
fn parsed(id: u32, text: &str) -> Option<Process> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // state, parent, ... ; user, system and those of ended children are fields 14 to 17 of all.
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Process { id, parent: u32::try_from(number(1)?).ok()?, ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_told_and_a_quiet_one_is_not() {
        let quiet =
            Bustle { processors: 2, others: Some(0.02), stolen: Some(0.0), ..Bustle::default() };
        assert_eq!(quiet.note(), None);
        // The load of what went before, such as the compiler, does not spoil a quiet run.
        assert_eq!(Bustle { load_at_start: 2.3, ..quiet }.note(), None);
        let loaded = Bustle { load_at_start: 6.6, others: Some(0.3), ..quiet };
        let note = loaded.note().unwrap();
        assert!(note.contains("6.6 on 2 processors") && note.contains("30 %"), "{note}");
        assert!(Bustle::of_load(2, 1.1).note().is_some());
        assert_eq!(Bustle::of_load(2, 0.9).note(), None);
        assert!(Bustle { others: Some(0.25), ..quiet }.note().is_some());
        let stolen = Bustle { stolen: Some(0.12), ..quiet }.note().unwrap();
        assert!(stolen.contains("12 %"), "{stolen}");
    }

    #[test]
    fn own_work_is_not_taken_for_that_of_others() {
        let mut watch = Watch::start();
        // A child that computes, as a measurement does.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"])
            .spawn()
            .unwrap();
        child.wait().unwrap();
        let before = watch.end();
        assert!(before.others.is_some_and(|others| (0.0..=1.0).contains(&others)), "{before:?}");
        // What is counted as ours is taken from the others.
        watch.counted = i64::from(u32::MAX);
        assert_eq!(watch.end().others, Some(0.0));
        let mut watch = Watch { counted: 0, ..watch };
        watch.begin(std::process::id());
        watch.finish(std::process::id());
        assert!((0..100).contains(&watch.counted), "only what came between: {watch:?}");
        watch.finish(u32::MAX);
        let this = process(std::process::id()).unwrap();
        assert!(this.is_ours(std::process::id(), &processes()));
        assert!(!this.is_ours(u32::MAX, &[this]));
    }

    #[test]
    fn texts_of_the_kernel_are_read() {
        let times = Times::of("cpu  10 1 5 100 4 2 3 7 6 0\ncpu0 1\n").unwrap();
        assert_eq!((times.total, times.used, times.stolen), (132, 21, 7));
        let text = "7 (a) b (c)) S 3 7 7 0 -1 1 2 3 4 5 100 20 3 4 20 0 1 0 9";
        assert_eq!(parsed(7, text), Some(Process { id: 7, parent: 3, ticks: 127 }));
        assert_eq!(parsed(7, "nonsense"), None);
        assert_eq!(Times::of("intr 1"), None);
    }
}
