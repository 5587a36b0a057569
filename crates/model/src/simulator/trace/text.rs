//! Traces as CSV and as JSON. Column names carry the unit: `time_s`, `time_ms` or `time_ns`, and
//! `demand_bytes`, `demand_mib`, `demand_gib`, `demand_mb` or `demand_gb`. Guesses no unit.

use std::fmt::Write;

use serde_json::{Map, Value};
use tidepool_proto::Result;

use super::{SECOND_NS, Trace, TracePoint, refuse};

/// Names of the time column, with nanoseconds a unit.
const TIMES: [(&str, f64); 4] = [
    ("time_s", SECOND_NS as f64),
    ("seconds", SECOND_NS as f64),
    ("time_ms", 1e6),
    ("time_ns", 1.0),
];
/// Names of the demand column, with bytes a unit.
const DEMANDS: [(&str, f64); 6] = [
    ("demand_bytes", 1.0),
    ("bytes", 1.0),
    ("demand_mb", 1e6),
    ("demand_gb", 1e9),
    ("demand_mib", 1_048_576.0),
    ("demand_gib", 1_073_741_824.0),
];
/// More than any machine has, and far from where sums overflow.
const LARGEST: f64 = (1_u64 << 60) as f64;

/// A column and what one of its units is.
struct Column {
    index: usize,
    factor: f64,
}

fn column(names: &[String], known: &[(&str, f64)], what: &str) -> Result<Column> {
    let factor = |name: &String| known.iter().find(|(known, _)| known == name).map(|entry| entry.1);
    let mut found = names
        .iter()
        .enumerate()
        .filter_map(|(index, name)| factor(name).map(|factor| Column { index, factor }));
    let choices = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let first = found.next().ok_or_else(|| {
        let detail = format!("no column of {what} among `{}`", names.join(","));
        refuse(detail, format!("name one of the columns {choices}"))
    })?;
    if found.next().is_some() {
        let detail = format!("more than one column of {what} in `{}`", names.join(","));
        return Err(refuse(detail, format!("keep one of {choices}")));
    }
    Ok(first)
}

fn scaled(value: f64, factor: f64, place: &str) -> Result<u64> {
    let scaled = value * factor;
    if scaled.is_finite() && (0.0..=LARGEST).contains(&scaled) {
        return Ok(scaled.round() as u64);
    }
    Err(refuse(format!("{place}: {value} is out of range"), "give numbers from 0 to 2^60"))
}

impl Trace {
    /// A trace from text: JSON if it begins with `[` or `{`, else CSV.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim_start().starts_with(['[', '{']) {
            Self::parse_json(text)
        } else {
            Self::parse_csv(text)
        }
    }

    /// A trace from lines of values below a line of column names; other columns are passed over,
    /// as are empty lines and lines that begin with `#`.
    pub fn parse_csv(text: &str) -> Result<Self> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let Some((_, header)) = lines.next() else {
            return Err(refuse("it is empty", "begin with a line such as `time_s,demand_bytes`"));
        };
        let names: Vec<String> =
            header.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let time = column(&names, &TIMES, "time")?;
        let demand = column(&names, &DEMANDS, "demand")?;
        let mut points = Vec::new();
        for (number, line) in lines {
            let place = format!("line {number}");
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            if cells.len() != names.len() {
                let detail = format!("{place} has {} of {} values", cells.len(), names.len());
                return Err(refuse(detail, format!("give a value for each of `{header}`")));
            }
            let value = |column: &Column| -> Result<u64> {
                let cell = cells[column.index];
                let number: f64 = cell.parse().map_err(|_| {
                    refuse(format!("{place}: `{cell}` is no number"), "write numbers without units")
                })?;
                scaled(number, column.factor, &place)
            };
            points.push(TracePoint { at_ns: value(&time)?, demand_bytes: value(&demand)? });
        }
        Self::new(points)
    }

    /// A trace from a JSON array of objects such as `{"time_s": 0, "demand_bytes": 1024}`, or from
    /// an object of two arrays with these names.
    pub fn parse_json(text: &str) -> Result<Self> {
        let shape = "write [{\"time_s\": 0, \"demand_bytes\": 1024}, ...]";
        let value: Value = serde_json::from_str(text).map_err(|e| refuse(e.to_string(), shape))?;
        match value {
            Value::Array(entries) => Self::from_entries(&entries),
            Value::Object(columns) => Self::from_columns(&columns),
            _ => Err(refuse("it is neither an array nor an object", shape)),
        }
    }

    fn from_entries(entries: &[Value]) -> Result<Self> {
        let mut points = Vec::with_capacity(entries.len());
        for (number, entry) in (1..).zip(entries) {
            let place = format!("entry {number}");
            let remedy = "each entry is an object with a time and a demand";
            let entry =
                entry.as_object().ok_or_else(|| refuse(format!("{place} is no object"), remedy))?;
            let names: Vec<String> = entry.keys().cloned().collect();
            let value = |known: &[(&str, f64)], what: &str| -> Result<u64> {
                let column = column(&names, known, what)?;
                number_in(&entry[&names[column.index]], column.factor, &place)
            };
            let at_ns = value(&TIMES, "time")?;
            points.push(TracePoint { at_ns, demand_bytes: value(&DEMANDS, "demand")? });
        }
        Self::new(points)
    }

    fn from_columns(columns: &Map<String, Value>) -> Result<Self> {
        let names: Vec<String> = columns.keys().cloned().collect();
        let values = |known: &[(&str, f64)], what: &str| -> Result<Vec<u64>> {
            let column = column(&names, known, what)?;
            let name = &names[column.index];
            let values = columns[name].as_array().ok_or_else(|| {
                refuse(format!("`{name}` is no array"), "give an array of numbers a column")
            })?;
            let place = |number: usize| format!("`{name}`, value {number}");
            let numbers = (1..).zip(values);
            numbers.map(|(n, value)| number_in(value, column.factor, &place(n))).collect()
        };
        let (times, demands) = (values(&TIMES, "time")?, values(&DEMANDS, "demand")?);
        if times.len() != demands.len() {
            let detail = format!("{} times and {} demands", times.len(), demands.len());
            return Err(refuse(detail, "give a demand for each time"));
        }
        let points = times.into_iter().zip(demands);
        Self::new(points.map(|(at_ns, demand_bytes)| TracePoint { at_ns, demand_bytes }).collect())
    }

    /// The trace as CSV.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("time_ns,demand_bytes\n");
        for point in self.points() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{},{}", point.at_ns, point.demand_bytes);
        }
        text
    }

    /// The trace as a JSON object of two arrays.
    pub fn to_json(&self) -> String {
        let times: Vec<u64> = self.points().iter().map(|point| point.at_ns).collect();
        let demands: Vec<u64> = self.points().iter().map(|point| point.demand_bytes).collect();
        serde_json::json!({ "time_ns": times, "demand_bytes": demands }).to_string()
    }
}

fn number_in(value: &Value, factor: f64, place: &str) -> Result<u64> {
    // Whole numbers of the smallest unit are kept exactly.
    if let (Some(whole), true) = (value.as_u64(), factor == 1.0) {
        return scaled(whole as f64, factor, place).map(|_| whole);
    }
    let number = value
        .as_f64()
        .ok_or_else(|| refuse(format!("{place}: `{value}` is no number"), "write plain numbers"))?;
    scaled(number, factor, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_text_give_the_same_trace() {
        let forms = [
            "time_s,demand_bytes\n0,1073741824\n# later\n1.5,0\n",
            "demand_gib, note, TIME_MS\n1,a,0\n0,b,1500\n",
            "seconds,bytes\r\n0,1073741824\r\n1.5,0\r\n",
            "[{\"time_ns\": 0, \"demand_bytes\": 1073741824},\
              {\"time_s\": 1.5, \"demand_mb\": 0}]",
            "{\"time_s\": [0, 1.5], \"demand_gib\": [1, 0]}",
        ];
        let traces = forms.map(|text| Trace::parse(text).unwrap());
        assert!(traces.iter().all(|trace| *trace == traces[0]), "{traces:?}");
        assert_eq!(traces[0].demand_bytes(750_000_000), 1 << 29);
        assert_eq!(Trace::parse(&traces[0].to_csv()).unwrap(), traces[0]);
        assert_eq!(Trace::parse(&traces[0].to_json()).unwrap(), traces[0]);
    }

    #[test]
    fn text_that_makes_no_sense_is_refused_saying_where() {
        for (text, said) in [
            ("", "empty"),
            ("# nothing\n", "empty"),
            ("time_s,demand_bytes\n", "no points"),
            ("time,demand_bytes\n0,1", "no column of time"),
            ("time_s,demand_pages\n0,1", "no column of demand"),
            ("time_s,time_ms,demand_gb\n0,0,1", "more than one column of time"),
            ("0,1\n1,2", "no column of time"),
            ("time_s,demand_gb\n0", "line 2 has 1 of 2"),
            ("time_s,demand_gb\n0,1\n1,2GB", "line 3: `2GB` is no number"),
            ("time_s,demand_gb\n0,-1", "line 2: -1 is out of range"),
            ("time_s,demand_gb\n0,nan", "out of range"),
            ("time_s,demand_gb\n0,1e300", "out of range"),
            ("time_s,demand_gb\n0,1\n0,2", "point 2"),
            ("[", "EOF"),
            ("[1]", "entry 1 is no object"),
            ("[{\"time_s\": 0}]", "no column of demand"),
            ("[{\"time_s\": \"0\", \"demand_gb\": 1}]", "no number"),
            ("{\"time_s\": [0], \"demand_gb\": []}", "1 times and 0 demands"),
            ("{\"time_s\": 0, \"demand_gb\": []}", "is no array"),
            ("[]", "no points"),
        ] {
            let error = Trace::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
