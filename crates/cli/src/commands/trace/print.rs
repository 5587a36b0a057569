//! [`Printer`]: records of requests as aligned lines, or as lines of JSON.

use serde::Serialize;
use tidepool_proto::Result;
use tidepool_proto::trace::{ServedBy, TraceBatch, TraceRecord, now_us};

use super::summary::{Report, Summary};
use tidepool_terminal::output::{self, Colour, coloured};

/// Said below the first open of this kind.
const PASSTHROUGH: &str =
    "the kernel serves this open by itself: what it reads or writes does not come by here";

/// Prints requests, and sums them up.
pub(super) struct Printer {
    json: bool,
    begun_us: u64,
    ended_us: Option<u64>,
    has_header: bool,
    told_passthrough: bool,
    summary: Summary,
}

/// The last line of JSON.
#[derive(Serialize)]
struct Last<'a> {
    summary: &'a Report,
}

impl Printer {
    pub fn new(json: bool) -> Printer {
        Printer {
            json,
            begun_us: now_us(),
            ended_us: None,
            has_header: false,
            told_passthrough: false,
            summary: Summary::default(),
        }
    }

    /// What comes from now on began before.
    pub fn stopped(&mut self) {
        self.ended_us.get_or_insert_with(now_us);
    }

    pub fn batch(&mut self, batch: &TraceBatch) {
        for record in &batch.records {
            self.summary.add(record);
            if self.json {
                if let Ok(line) = serde_json::to_string(record) {
                    output::json_line(&line);
                }
            } else {
                self.line(record);
            }
        }
        if batch.dropped > 0 {
            self.summary.note_dropped(batch.dropped);
            let requests = output::count(batch.dropped, "request");
            output::note(&format!("tidepool: {requests} came too fast and are missing here"));
        }
    }

    fn line(&mut self, record: &TraceRecord) {
        if !self.has_header {
            self.has_header = true;
            output::line(&coloured(&header(), Colour::Strong));
        }
        output::line(&row(record, self.begun_us));
        if record.level == ServedBy::Passthrough && !self.told_passthrough {
            self.told_passthrough = true;
            output::line(&coloured(&format!("{:>11}  {PASSTHROUGH}", ""), Colour::Faint));
        }
    }

    /// Prints the summary.
    pub fn finish(&self) -> Result<()> {
        let ended_us = self.ended_us.unwrap_or_else(now_us);
        let elapsed_us = ended_us.saturating_sub(self.begun_us);
        let report = self.summary.report(elapsed_us);
        if self.json {
            let last = serde_json::to_string(&Last { summary: &report });
            let failed = |error: serde_json::Error| std::io::Error::other(error.to_string());
            output::json_line(
                &last.map_err(|error| tidepool_proto::Error::pfs("writing JSON", failed(error)))?,
            );
        } else {
            report.print();
        }
        Ok(())
    }
}

fn header() -> String {
    columns(
        ["TIME", "FRONT", "UID", "PID", "PROCESS", "OPERATION", "OFFSET", "BYTES", "SERVED BY"],
        ["PFS µs", "TOTAL µs", "RESULT", "FILE"],
    )
}

fn columns(first: [&str; 9], last: [&str; 4]) -> String {
    let [time, front, user, process_id, process, operation, offset, bytes, level] = first;
    let [pfs, total, result, file] = last;
    format!(
        "{time:>11}  {front:<7}  {user:>5}  {process_id:>7}  {process:<15}  {operation:<9}  \
         {offset:>12}  {bytes:>9}  {level:<11}  {pfs:>9}  {total:>9}  {result:<7}  {file}"
    )
}

fn row(record: &TraceRecord, begun_us: u64) -> String {
    // What a client tells of the time before is none of ours.
    let since_us = record.begun_us.saturating_sub(begun_us);
    let time = format!("{}.{:06}", since_us / 1_000_000, since_us % 1_000_000);
    let text = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let process = if record.process.is_empty() { "?" } else { &record.process };
    let bytes = text(record.length.map(|_| record.bytes));
    let level = if record.level == ServedBy::Other { "-" } else { record.level.name() };
    let file = match record.path.as_deref() {
        Some("") => ".",
        Some(path) => path,
        None => "?",
    };
    let line = columns(
        [
            &time,
            record.front.name(),
            &record.user_id.to_string(),
            &record.process_id.to_string(),
            process,
            record.operation.name(),
            &text(record.offset),
            &bytes,
            level,
        ],
        [
            &record.pfs_us.to_string(),
            &record.elapsed_us.to_string(),
            &errno_name(record.errno),
            file,
        ],
    );
    match record.errno {
        0 => line,
        _ => coloured(&line, Colour::Warning),
    }
}

/// The name of an error number, as `errno(3)` has it.
fn errno_name(errno: i32) -> String {
    const NAMES: [(i32, &str); 30] = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EINTR, "EINTR"),
        (libc::EIO, "EIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENFILE, "ENFILE"),
        (libc::EMFILE, "EMFILE"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EROFS, "EROFS"),
        (libc::EMLINK, "EMLINK"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOTEMPTY, "ENOTEMPTY"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENODATA, "ENODATA"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ESTALE, "ESTALE"),
        (libc::EDQUOT, "EDQUOT"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == errno);
    match (errno, known) {
        (0, _) => "ok".to_owned(),
        (_, Some((_, name))) => (*name).to_owned(),
        (_, None) => format!("E{errno}"),
    }
}

#[cfg(test)]
mod tests {
    use tidepool_proto::trace::{Front, Operation};

    use super::*;

    #[test]
    fn lines_are_aligned_below_their_header() {
        let record = TraceRecord {
            begun_us: 1_500_000,
            process: "cat".into(),
            path: Some("data/part-0".into()),
            offset: Some(0),
            length: Some(131_072),
            bytes: 131_072,
            level: ServedBy::Pfs,
            elapsed_us: 4_321,
            pfs_us: 4_300,
            ..TraceRecord::begun(Front::Mount, Operation::Read, 1000, 77)
        };
        let (header, line) = (header(), row(&record, 1_000_000));
        let column = |text: &str, name: &str| text.find(name).unwrap_or_else(|| panic!("{name}"));
        assert!(line.trim_start().starts_with("0.500000  mount"), "{line}");
        assert_eq!(column(&header, "SERVED BY"), column(&line, "pfs"));
        assert_eq!(column(&header, "PROCESS"), column(&line, "cat"));
        assert!(line.ends_with("ok       data/part-0"), "{line}");
        let failed = TraceRecord { errno: libc::ENOENT, path: None, length: None, ..record };
        let line = row(&failed, 1_000_000);
        assert!(line.ends_with("ENOENT   ?"), "{line}");
        assert_eq!(errno_name(12_345), "E12345");
    }
}
