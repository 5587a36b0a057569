//! [`Wish`]: what to trace, read from the arguments. A number is a process, a number with a unit is
//! a time, anything else is a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tidepool_proto::{Error, ErrorKind, Result};

/// What is to be traced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Only requests of this file.
    pub file: Option<PathBuf>,
    /// Only requests of this process.
    pub process_id: Option<u32>,
    /// Only so long.
    pub lasts: Option<Duration>,
}

/// Longest time, in seconds.
const SECONDS_MAX: u64 = 7 * 86_400;

fn refused(what: &Path, detail: &str) -> Error {
    let operation = format!("reading the argument {}", what.display());
    Error::new(ErrorKind::InvalidInput, operation, detail)
}

impl Wish {
    /// Reads the arguments.
    pub fn parse(arguments: &[PathBuf]) -> Result<Wish> {
        let mut wish = Wish::default();
        for argument in arguments {
            let twice = |what| refused(argument, &format!("there is {what} already"));
            let number = argument.to_str().and_then(|text| text.parse::<u64>().ok());
            if let Some(number) = number {
                let number = u32::try_from(number).map_err(|_| no_process(argument))?;
                if wish.process_id.replace(number).is_some() {
                    return Err(twice("a process"));
                }
            } else if let Some(lasts) = argument.to_str().and_then(time) {
                let remedy = format!("choose 1s to {SECONDS_MAX}s, or Ctrl-C as the end");
                let seconds = lasts
                    .ok_or_else(|| refused(argument, "the time is out of range").remedy(remedy))?;
                if wish.lasts.replace(seconds).is_some() {
                    return Err(twice("a time"));
                }
            } else if wish.file.replace(argument.clone()).is_some() {
                return Err(twice("a file"));
            }
        }
        Ok(wish)
    }

    /// Refuses a process that is not there.
    pub fn check_process(&self) -> Result<()> {
        match self.process_id {
            Some(id) if !Path::new(&format!("/proc/{id}")).exists() => {
                Err(no_process(Path::new(&id.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// The wish for people.
    pub fn words(&self) -> String {
        let mut words = "requests".to_owned();
        if let Some(id) = self.process_id {
            words += &format!(" of process {id}");
        }
        if let Some(file) = &self.file {
            words += &format!(" of {}", file.display());
        }
        match self.lasts {
            Some(lasts) => words + &format!(" for {} s", lasts.as_secs()),
            None => words + " until Ctrl-C",
        }
    }
}

fn no_process(argument: &Path) -> Error {
    let number = argument.display();
    refused(argument, "there is no such process")
        .remedy(format!("for a time write {number}s, for a file of that name ./{number}"))
}

/// A number with its unit; nothing where it is no time at all, and no time where it is too long.
fn time(text: &str) -> Option<Option<Duration>> {
    let (number, seconds) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s')?, 1),
    };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    Some(seconds.filter(|it| (1..=SECONDS_MAX).contains(it)).map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Wish> {
        Wish::parse(&arguments.iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_are_processes_times_have_units_and_the_rest_is_files() {
        assert_eq!(parse(&[]).unwrap(), Wish::default());
        let wish = parse(&["5s", "/pfs/a", "17"]).unwrap();
        assert_eq!(wish.file.as_deref(), Some(Path::new("/pfs/a")));
        assert_eq!((wish.process_id, wish.lasts), (Some(17), Some(Duration::from_secs(5))));
        assert_eq!(wish.words(), "requests of process 17 of /pfs/a for 5 s");
        assert_eq!(parse(&["2m"]).unwrap().lasts, Some(Duration::from_secs(120)));
        for file in ["./5s", "s", "m", "-5s", "5ms", "tide:///5"] {
            assert_eq!(parse(&[file]).unwrap().file.as_deref(), Some(Path::new(file)));
        }
        assert_eq!(parse(&[]).unwrap().words(), "requests until Ctrl-C");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_cure() {
        for (arguments, said) in [
            (&["1", "2"][..], "there is a process already"),
            (&["a", "b"], "there is a file already"),
            (&["1s", "1m"], "there is a time already"),
            (&["0s"], "out of range"),
            (&["99999999999999999999s"], "out of range"),
            (&["4294967296"], "write 4294967296s"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        let error = parse(&["4194999"]).unwrap().check_process().unwrap_err();
        assert!(error.to_string().contains("no such process"), "{error}");
        let own = std::process::id().to_string();
        assert!(parse(&[&own]).unwrap().check_process().is_ok());
    }
}
