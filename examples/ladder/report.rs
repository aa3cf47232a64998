//! What the ladder found: as a line, a table, Markdown and JSON.

use std::path::Path;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table};
use holdfast::planted::Fault;
use serde_json::{Value, json};

/// What caught a fault.
#[derive(Debug)]
pub(crate) struct Catch {
    pub(crate) rung: u8,
    pub(crate) suite: String,
    pub(crate) test: String,
    pub(crate) why: String,
    /// How long the suite had run.
    pub(crate) after: Duration,
    /// Whether the same test failed again; `None` when it is not one test.
    pub(crate) again: Option<bool>,
}

/// One fault.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) fault: Fault,
    pub(crate) catch: Option<Catch>,
    /// How long the climb took.
    pub(crate) took: Duration,
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn test_of(catch: &Catch) -> String {
    let seen = match catch.again {
        Some(false) => ", not the second time",
        Some(true) | None => "",
    };
    format!("{}: {}{seen}", catch.suite, catch.test)
}

/// One line about a fault.
pub(crate) fn line(row: &Row) -> String {
    match &row.catch {
        Some(catch) => format!(
            "{:24} rung {} after {:>8}  {}",
            row.fault.name(),
            catch.rung,
            seconds(catch.after),
            test_of(catch)
        ),
        None => format!("{:24} NOT CAUGHT in {}", row.fault.name(), seconds(row.took)),
    }
}

/// A table for people.
pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["fault", "rung", "caught by", "after", "what it said"]);
    for row in rows {
        let name = row.fault.name().to_owned();
        table.add_row(match &row.catch {
            Some(catch) => [
                name,
                catch.rung.to_string(),
                test_of(catch),
                seconds(catch.after),
                short(&catch.why, 120),
            ],
            None => [name, "-".into(), "NOT CAUGHT".into(), seconds(row.took), String::new()],
        });
    }
    table
}

/// The same for a document.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text =
        String::from("| fault | breaks | rung | caught by | after |\n|---|---|---|---|---|\n");
    for row in rows {
        let (name, rule) = (row.fault.name(), row.fault.rule());
        text += &match &row.catch {
            Some(catch) => format!(
                "| `{name}` | {rule} | {} | `{}` `{}` | {} |\n",
                catch.rung,
                catch.suite,
                catch.test,
                seconds(catch.after)
            ),
            None => format!("| `{name}` | {rule} | none | **not caught** | |\n"),
        };
    }
    text
}

/// The same for programs.
pub(crate) fn json(rows: &[Row], broken: &[(String, String)]) -> Value {
    let one = |row: &Row| {
        let catch = row.catch.as_ref().map(|catch| {
            json!({
                "rung": catch.rung, "suite": catch.suite, "test": catch.test, "why": catch.why,
                "after_s": catch.after.as_secs_f64(), "again": catch.again,
            })
        });
        json!({
            "fault": row.fault.name(), "rule": row.fault.rule(), "caught": catch,
            "took_s": row.took.as_secs_f64(),
        })
    };
    let faults: Vec<Value> = rows.iter().map(one).collect();
    json!({ "faults": faults, "fail_without_a_fault": broken })
}

/// Writes the report so far.
pub(crate) fn write(path: &Path, rows: &[Row], broken: &[(String, String)]) -> Result<(), String> {
    let text = format!("{:#}\n", json(rows, broken));
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn short(words: &str, most: usize) -> String {
    let cut = words.chars().take(most).collect::<String>();
    if cut.len() < words.len() { format!("{cut}…") } else { cut }
}
