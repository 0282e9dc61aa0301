//! The results of a run: printed, and kept for the file of `--json`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

/// What a row counts in: its name, and by what a measured value is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    name: &'static str,
    pub(crate) factor: f64,
}

pub(crate) const SECONDS: Unit = unit("s", 1.0);
pub(crate) const MILLI: Unit = unit("ms", 1e3);
pub(crate) const MICRO: Unit = unit("µs", 1e6);
/// Of what the row names, in a second.
pub(crate) const RATE: Unit = unit("", 1.0);
/// Of a gibibyte, given how many are copied in a second.
pub(crate) const SPEED: Unit = unit("GB/s", 1.073_741_824);
pub(crate) const MIB: Unit = unit("MiB", 1.0);
pub(crate) const KIB: Unit = unit("KiB", 1.0);
pub(crate) const MB: Unit = unit("MB", 1.0);
pub(crate) const KB: Unit = unit("KB", 1.0);
pub(crate) const PERCENT: Unit = unit("% of a core", 1.0);

const fn unit(name: &'static str, factor: f64) -> Unit {
    Unit { name, factor }
}

/// The results so far, by row.
static RESULTS: Mutex<BTreeMap<String, Map<String, Value>>> = Mutex::new(BTreeMap::new());

/// Prints a ratio with its least and most, and the figures of both sides, ours first.
pub(crate) fn ratio(name: &str, [median, min, max]: [f64; 3], absolute: Option<([f64; 2], Unit)>) {
    let mut figures = vec![("median", median), ("min", min), ("max", max)];
    let printed = match absolute {
        Some(([ours, other], unit)) => {
            figures.extend([("ours", ours), ("other", other)]);
            format!("   {ours:.3} / {other:.3} {}", unit.name)
        }
        None => String::new(),
    };
    println!("{name:<44} {median:>9.2} {min:>9.2} {max:>9.2}{printed}");
    keep(name, &figures, absolute.map(|(_, unit)| unit));
}

/// Prints a figure that is compared with none.
pub(crate) fn figure(name: &str, value: f64, unit: Unit) {
    println!("{name:<44} {value:>9.2} {}", unit.name);
    keep(name, &[("ours", value)], Some(unit));
}

fn keep(name: &str, figures: &[(&str, f64)], unit: Option<Unit>) {
    let name = if lab::host::tier() == lab::host::Tier::Rootless {
        format!("{name} (rootless)")
    } else {
        name.to_owned()
    };
    // Four digits: more are noise.
    let rounded = |value: f64| format!("{value:.3e}").parse::<f64>().unwrap();
    let mut result: Map<String, Value> = figures
        .iter()
        .map(|(key, value)| ((*key).to_owned(), rounded(*value).into()))
        .collect();
    if let Some(unit) = unit {
        result.insert("unit".to_owned(), unit.name.into());
    }
    let today = time::OffsetDateTime::now_utc().date().to_string();
    result.insert("date".to_owned(), today.into());
    RESULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(name, result);
}

/// Writes the results so far into `file`, one row a line. Rows that this run has not measured stay
/// as they are, and so does what the file says about a row beside its figures.
pub(crate) fn write(file: &Path) {
    let mut rows: Vec<Map<String, Value>> = match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).unwrap(),
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{}: {error}", file.display()),
    };
    let results = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, result) in results.iter() {
        let known = rows
            .iter_mut()
            .find(|row| row.get("row").and_then(Value::as_str) == Some(name.as_str()));
        match known {
            Some(row) => row.extend(result.clone()),
            None => {
                let mut row = result.clone();
                row.insert("row".to_owned(), name.as_str().into());
                if let Some((_, compared)) = name.split_once(" / ") {
                    row.insert("compared".to_owned(), compared.into());
                }
                rows.push(row);
            }
        }
    }
    let lines: Vec<_> = rows
        .iter()
        .map(|row| serde_json::to_string(row).unwrap())
        .collect();
    std::fs::write(file, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
}
