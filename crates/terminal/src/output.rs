//! Prints results: tables for people, JSON for programs, colour on terminals only.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use tidepool_proto::{ByteSize, Error, Result};

use crate::interruption;

/// Columns that broken lines need beside what they stand below.
const COLUMNS_OF_TEXT_MIN: usize = 24;
/// Where broken lines begin on a terminal that has no room for that.
const INDENT_MIN: usize = 4;

static HAS_PRINTED: AtomicBool = AtomicBool::new(false);
/// Whether the program has more to do than to answer.
static OUTLIVES_READERS: AtomicBool = AtomicBool::new(false);
/// The exit code of a program whose answer could not be printed.
static UNHEARD: OnceLock<u8> = OnceLock::new();

/// From now on the program goes on although nobody takes what it prints.
pub fn outlive_readers() {
    OUTLIVES_READERS.store(true, Ordering::Relaxed);
}

/// What to end with where the answer could not be printed: 0 if its reader went away.
pub fn unheard() -> Option<u8> {
    UNHEARD.get().copied()
}

/// Prints a line to standard output. A reader that went away ends the program quietly; one that
/// has made things is asked to put them away first, as by Ctrl-C.
pub fn line(text: &str) {
    raw_line(&one_line(text));
}

/// The same for a text of ours of several lines.
pub fn text(lines: &str) {
    raw_line(&without_controls(lines, true));
}

/// Empties the terminal that standard output is, for what is shown again and again. Elsewhere
/// pictures come one below the other.
pub fn clear() {
    if io::stdout().is_terminal() {
        // To the first place, then all behind it.
        _ = io::stdout().lock().write_all(b"\x1b[H\x1b[2J");
    }
}

fn raw_line(text: &str) {
    HAS_PRINTED.store(true, Ordering::Relaxed);
    if unheard().is_some() {
        return;
    }
    let mut stdout = io::stdout().lock();
    let Err(error) = writeln!(stdout, "{text}").and_then(|()| stdout.flush()) else { return };
    let is_gone = error.kind() == io::ErrorKind::BrokenPipe;
    if !is_gone {
        note(&format!("tidepool: while printing the answer: {error} (write it elsewhere)"));
    }
    if OUTLIVES_READERS.load(Ordering::Relaxed) {
        return;
    }
    let code = *UNHEARD.get_or_init(|| if is_gone { 0 } else { 1 });
    if !interruption::ask() {
        std::process::exit(code.into());
    }
}

/// Whether standard output has something of this program already.
pub fn has_printed() -> bool {
    HAS_PRINTED.load(Ordering::Relaxed)
}

/// Prints a line for people to standard error. What a text says in several lines is indented: a
/// name with an end of line in it looks like no message of ours.
pub fn note(text: &str) {
    let text = without_controls(text, true);
    // A closed standard error must not end a command that works.
    let _ = writeln!(io::stderr().lock(), "{}", text.replace('\n', "\n  "));
}

/// The text with what a terminal acts on spelled out, but for tabulators, our colours and, where
/// there may be several lines, their ends: names of files are chosen by other users, and must
/// neither command the reader's terminal nor show as something else.
fn without_controls(text: &str, several_lines: bool) -> Cow<'_, str> {
    let is_kept = |it: char| it == '\t' || (it == '\n' && several_lines);
    let is_command = |it: char| (it.is_control() && !is_kept(it)) || is_unseen(it);
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_command) {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(length) = colour_length(rest) {
            shown.push_str(&rest[..length]);
            rest = &rest[length..];
        } else if let Some(command) = rest.chars().next() {
            shown.extend(command.escape_unicode());
            rest = &rest[command.len_utf8()..];
        }
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

fn one_line(text: &str) -> Cow<'_, str> {
    without_controls(text, false)
}

/// Whether a character shows nothing and changes how others show: directions of writing, joiners,
/// separators of lines, tags.
fn is_unseen(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// How long the change to one of our colours is that the text begins with, in bytes. Others may
/// hide what they stand before.
fn colour_length(text: &str) -> Option<usize> {
    let codes = Colour::ALL.into_iter().map(Colour::code).chain([PLAIN]);
    let begins =
        |code| text.strip_prefix("\u{1b}[")?.strip_prefix(code)?.starts_with('m').then_some(code);
    codes.filter_map(begins).next().map(|code| "\u{1b}[m".len() + code.len())
}

/// Prints facts as JSON, indented.
pub fn json<T: Serialize>(facts: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(facts)
        .map_err(|source| Error::pfs("writing JSON", io::Error::other(source.to_string())))?;
    json_line(&text);
    Ok(())
}

/// Prints a line of JSON. JSON spells out controls of ASCII; here the others are, which stand in
/// its strings only.
pub fn json_line(text: &str) {
    raw_line(&spelled_out(text));
}

/// JSON without what a terminal acts on.
fn spelled_out(json: &str) -> Cow<'_, str> {
    let is_command = |it: char| (it.is_control() && it > ' ') || is_unseen(it);
    if !json.contains(is_command) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if is_command(character) {
            let units = &mut [0; 2];
            let units = character.encode_utf16(units);
            shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Colours of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// What is well.
    Good,
    /// What is worth a look.
    Warning,
    /// What is wrong.
    Bad,
    /// What is less important.
    Faint,
    /// What should stand out.
    Strong,
}

/// Code of no colour.
const PLAIN: &str = "0";

impl Colour {
    const ALL: [Colour; 5] =
        [Colour::Good, Colour::Warning, Colour::Bad, Colour::Faint, Colour::Strong];

    fn code(self) -> &'static str {
        match self {
            Colour::Good => "32",
            Colour::Warning => "33",
            Colour::Bad => "31",
            Colour::Faint => "2",
            Colour::Strong => "1",
        }
    }
}

/// `text` in colour if standard output is a terminal and NO_COLOR is not set.
pub fn coloured(text: &str, colour: Colour) -> String {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if !wanted || !io::stdout().is_terminal() {
        return text.to_owned();
    }
    format!("\u{1b}[{}m{text}\u{1b}[{PLAIN}m", colour.code())
}

/// Lines of names and values, the values below each other.
pub fn pairs(rows: &[(&str, String)]) {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in rows {
        let padding = " ".repeat(width - name.chars().count());
        hanging(&format!("{}{padding}  ", coloured(name, Colour::Faint)), value);
    }
}

/// A line that begins with `head`. On a terminal that is too narrow the rest is broken between
/// words and goes on below its own beginning, or below `head` where that leaves no room.
pub fn hanging(head: &str, text: &str) {
    match columns() {
        Some(columns) => {
            let [head, text] = [head, text].map(one_line);
            raw_line(&wrapped(&head, &text, columns));
        }
        None => line(&format!("{head}{text}")),
    }
}

fn wrapped(head: &str, text: &str, columns: usize) -> String {
    let indent = textwrap::core::display_width(head);
    let indent = if indent + COLUMNS_OF_TEXT_MIN > columns { INDENT_MIN } else { indent };
    let below = " ".repeat(indent);
    let options = textwrap::Options::new(columns)
        .initial_indent(head)
        .subsequent_indent(&below)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::fill(text, options)
}

/// Width of the terminal that standard output is, if it is one.
fn columns() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(io::stdout()).ok()?.ws_col;
    (columns > 0).then_some(columns.into())
}

/// A table with aligned columns; `right` says which columns hold numbers.
pub fn table(header: &[&str], right: &[bool], rows: &[Vec<String>]) {
    let cells = |row: &Vec<String>| row.iter().map(|cell| one_line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let render = |cells: Vec<&str>| {
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            if right[column] { format!("{padding}{cell}") } else { format!("{cell}{padding}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    line(&coloured(&render(header.to_vec()), Colour::Strong));
    for row in &rows {
        line(&render(row.iter().map(String::as_str).collect()));
    }
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// A number and its noun, which takes an `s` where it is not 1.
pub fn count(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// A share as people read it; `-` where there is nothing to share.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", share(part, whole) * 100.0) }
}

/// `part` of `whole`, 0 where there is nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Seconds as people read them.
pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_commands_no_terminal_and_stays_json() {
        let name = "a\u{1b}b\u{9b}2J\u{7f}c\u{202e}d\u{e0001}ä";
        let text = serde_json::to_string_pretty(&[name]).unwrap();
        let shown = spelled_out(&text).into_owned();
        assert!(!shown.contains(['\u{9b}', '\u{7f}', '\u{202e}', '\u{e0001}']), "{shown}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [name]);
        assert!(matches!(spelled_out("{\n  \"ä\": 1\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn names_of_files_command_no_terminal() {
        let line = |text: &str| without_controls(text, false).into_owned();
        assert_eq!(line("a name, ä\tb"), "a name, ä\tb");
        let title = "a\u{1b}]0;title\u{7}b\u{1b}[2Jc\u{9b}2J\r";
        let shown = r"a\u{1b}]0;title\u{7}b\u{1b}[2Jc\u{9b}2J\u{d}";
        assert_eq!(line(title), shown);
        for colour in Colour::ALL {
            let coloured = format!("\u{1b}[{}mred\u{1b}[0m", colour.code());
            assert_eq!(line(&coloured), coloured);
        }
        assert_eq!(line("\u{1b}["), r"\u{1b}[");
    }

    #[test]
    fn names_of_files_hide_nothing_and_make_no_lines_of_their_own() {
        let line = |text: &str| without_controls(text, false).into_owned();
        assert_eq!(line("a\nfile  resident"), r"a\u{a}file  resident");
        assert_eq!(without_controls("a\nb", true), "a\nb");
        assert_eq!(line("\u{1b}[8mhidden\u{1b}[1;8m"), r"\u{1b}[8mhidden\u{1b}[1;8m");
        assert_eq!(line("a\u{202e}txt.exe\u{2066}\u{200b}"), r"a\u{202e}txt.exe\u{2066}\u{200b}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(percent(1, 3), "33.3%");
        assert_eq!(percent(0, 0), "-");
        assert_eq!((count(1, "file"), count(2, "file")), ("1 file".into(), "2 files".into()));
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(61), "1 min 1 s");
        assert_eq!(duration(90_061), "1 d 1 h");
    }

    #[test]
    fn long_values_are_broken_between_words() {
        let text = "one two three four five six seven eight nine ten";
        let broken = "name  one two three four five six\n      seven eight nine ten";
        assert_eq!(wrapped("name  ", text, 36), broken);
        let faint = "\u{1b}[2mname\u{1b}[0m  ";
        assert!(wrapped(faint, text, 36).ends_with("\n      seven eight nine ten"));
        let narrow = wrapped("a rather long name  ", text, 40);
        assert_eq!(narrow.lines().nth(1), Some("    five six seven eight nine ten"), "{narrow}");
        assert_eq!(wrapped("name  ", "short", 36), "name  short");
    }

    #[test]
    fn no_colour_without_a_terminal() {
        assert_eq!(coloured("text", Colour::Bad), "text");
    }
}
