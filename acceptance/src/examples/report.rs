//! The report of an example: times, bytes by level, locality, and what was checked.

use std::fmt;

use serde::Serialize;

/// Bytes by the level that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Read by programs from shared memory themselves.
    pub mapped: u64,
    /// Sent by the node from its store.
    pub store: u64,
    /// From the lower level.
    pub pfs: u64,
}

/// Hits of a first reading beyond which its data was in memory before.
const FILLED: f64 = 0.9;

/// One step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stage {
    /// What was done.
    pub name: String,
    /// How long it took, with the start of its programs.
    pub seconds: f64,
    /// Bytes that it read or wrote, where one number says it.
    pub bytes: Option<u64>,
    /// What the node served meanwhile; `None` without a node, or where it was restarted.
    pub served: Option<Served>,
    /// Tasks on the node that holds their data, of all that wanted it.
    pub local_tasks: Option<(u64, u64)>,
    /// Time of all map tasks together, which the clock on the wall hides where few run at once.
    pub task_seconds: Option<f64>,
    /// What the program says of its own reading or writing, in 10^6 bytes a second and task; the
    /// starts of programs are not in it.
    pub task_megabytes_s: Option<f64>,
    /// Other figures.
    pub notes: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Name of the example.
    pub example: String,
    /// Where the data was.
    pub storage: String,
    /// Bytes of the data.
    pub size_bytes: u64,
    /// What was done, in order.
    pub stages: Vec<Stage>,
    /// What was checked and found right.
    pub checked: Vec<String>,
    /// What was done to the node meanwhile.
    pub turmoil: Option<String>,
}

impl Served {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.mapped + self.store + self.pfs
    }

    /// Share that came from memory.
    pub fn hit_ratio(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| (self.mapped + self.store) as f64 / total as f64)
    }

    /// What was served since `before`; `None` where the counters began anew.
    pub fn since(&self, before: &Served) -> Option<Served> {
        Some(Served {
            mapped: self.mapped.checked_sub(before.mapped)?,
            store: self.store.checked_sub(before.store)?,
            pfs: self.pfs.checked_sub(before.pfs)?,
        })
    }
}

impl Stage {
    fn cells(&self) -> [String; 8] {
        let mega = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
        let served = |of: fn(&Served) -> u64| match &self.served {
            Some(served) => mega(of(served)),
            None => "-".into(),
        };
        let rate = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6 / self.seconds);
        let hits = self.served.as_ref().and_then(Served::hit_ratio);
        [
            self.name.clone(),
            format!("{:.2}", self.seconds),
            self.bytes.map_or("-".into(), rate),
            served(|served| served.mapped),
            served(|served| served.store),
            served(|served| served.pfs),
            hits.map_or("-".into(), |ratio| format!("{ratio:.3}")),
            self.local_tasks.map_or("-".into(), |(local, all)| format!("{local} of {all}")),
        ]
    }
}

impl Report {
    /// What the columns mean, as far as they say something here.
    fn columns(&self) -> Vec<&'static str> {
        let mut lines = Vec::new();
        if self.stages.iter().any(|stage| stage.served.is_some()) {
            lines.push(
                "mapped, store: from memory, read by the program itself or sent by the node; hits: \
                 part from memory",
            );
            // Steps that read nothing have no ratio.
            let mut ratios =
                self.stages.iter().filter_map(|stage| stage.served.as_ref()?.hit_ratio());
            let ratio = ratios.next();
            if ratio.is_some_and(|ratio| ratio > FILLED) {
                lines.push(
                    "already the first step that reads is served from memory: writing or loading \
                     the data had filled the store",
                );
            }
        }
        if self.stages.iter().any(|stage| stage.local_tasks.is_some()) {
            lines
                .push("local: tasks that ran on the node that holds their data, of all that asked");
        }
        lines
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.size_bytes as f64 / 1e6;
        writeln!(f, "{} on {}, {megabytes:.0} MB", self.example, self.storage)?;
        let titles = ["step", "s", "MB/s", "mapped MB", "store MB", "PFS MB", "hits", "local"];
        let titles = titles.map(String::from);
        let rows: Vec<[String; 8]> = self.stages.iter().map(Stage::cells).collect();
        for row in std::iter::once(&titles).chain(&rows) {
            write!(f, "  {:<24}", row[0])?;
            for cell in &row[1..] {
                write!(f, " {cell:>10}")?;
            }
            writeln!(f)?;
        }
        for line in self.columns() {
            writeln!(f, "  {line}")?;
        }
        for stage in &self.stages {
            if let Some(seconds) = stage.task_seconds {
                writeln!(f, "  {}: map tasks took {seconds:.2} s in all", stage.name)?;
            }
            if let Some(rate) = stage.task_megabytes_s {
                writeln!(f, "  {}: {rate:.0} MB/s a task", stage.name)?;
            }
            for note in &stage.notes {
                writeln!(f, "  {}: {note}", stage.name)?;
            }
        }
        if let Some(turmoil) = &self.turmoil {
            writeln!(f, "  meanwhile: {turmoil}")?;
        }
        for checked in &self.checked {
            writeln!(f, "  right: {checked}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, Served, Stage};

    #[test]
    fn columns_are_explained_where_they_say_something() {
        let stage = |served, local_tasks| Stage { served, local_tasks, ..Stage::default() };
        let of = |stages| Report { stages, ..Report::default() }.to_string();
        let cold = of(vec![stage(Some(Served { mapped: 0, store: 0, pfs: 9 }), None)]);
        assert!(cold.contains("hits: part from memory") && !cold.contains("had filled"), "{cold}");
        let warm = of(vec![stage(Some(Served { mapped: 99, store: 0, pfs: 1 }), Some((8, 16)))]);
        assert!(warm.contains("had filled the store") && warm.contains("tasks that ran"), "{warm}");
        assert!(!of(vec![stage(None, None)]).contains("hits: "));
    }

    #[test]
    fn counters_that_began_anew_give_no_difference() {
        let before = Served { mapped: 10, store: 5, pfs: 5 };
        let after = Served { mapped: 40, store: 5, pfs: 15 };
        let since = after.since(&before).unwrap();
        assert_eq!((since.mapped, since.store, since.pfs), (30, 0, 10));
        assert_eq!(since.hit_ratio(), Some(0.75));
        assert_eq!(before.since(&after), None);
        assert_eq!(Served::default().hit_ratio(), None);
    }
}
