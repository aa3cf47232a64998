//! How a verb speaks: data on stdout (JSON or a table), words on stderr.
//!
//! Never panics because the reader of a pipe has gone.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use comfy_table::{ContentArrangement, Table, presets};

use serde_json::{Value, json};

use super::Failure;

/// Whether this process has put anything on stdout: a failure that comes after data adds nothing.
static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);

/// Tables are no wider than this, in columns; what does not fit is broken within its cell.
const WIDTH_MAX: u16 = 118;

/// Members that people look for first, in this order; the others follow as they come.
const FIRST: [&str; 25] = [
    "id",
    "item",
    "cluster_id",
    "conserved",
    "broken",
    "state",
    "paused_reason",
    "quantity",
    "sold",
    "buyer",
    "total",
    "available",
    "held",
    "written_off",
    "in_transit",
    "limit_per_buyer",
    "reference",
    "region",
    "placed_at",
    "expires_at",
    "expires_in_ms",
    "extends_left",
    "revision",
    "hold",
    "sale",
];

/// Where a verb's answers go and how they look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Voice {
    json: bool,
}

impl Voice {
    pub(super) fn new(json: bool) -> Voice {
        Voice { json }
    }

    pub(super) fn is_json(self) -> bool {
        self.json
    }

    /// Prints data: the JSON in one line, or the table for people.
    pub(super) fn data(self, value: &Value, table: impl FnOnce() -> Table) {
        if self.json {
            self.line(&value.to_string());
        } else {
            self.line(&table().to_string());
        }
    }

    /// Prints data that is a text in both cases.
    pub(super) fn line(self, text: &str) {
        HAS_SPOKEN.store(true, Ordering::Relaxed);
        // A reader that has gone (`| head`) is no error.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// Says something to people.
    pub(super) fn say(self, words: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{words}");
    }

    /// Tells a failure: the words on stderr, and with `--json`, when no data was printed, one
    /// object on stdout: `error`, `exit_code`, and `problem` when the cluster refused.
    pub(super) fn failure(self, failure: &Failure) {
        self.say(&format!("holdfast: {failure}"));
        self.fact(failure);
    }

    /// The part of a failure that is for programs.
    pub(super) fn fact(self, failure: &Failure) {
        if self.json && !HAS_SPOKEN.load(Ordering::Relaxed) {
            self.line(&as_json(failure).to_string());
        }
    }
}

/// A failure for programs.
fn as_json(failure: &Failure) -> Value {
    let problem = match failure {
        Failure::Refused(problem) => Some(&problem.members),
        Failure::Broken(_)
        | Failure::Usage(_)
        | Failure::Unavailable(_)
        | Failure::Attention(_) => None,
    };
    let mut value = json!({ "error": failure.to_string(), "exit_code": failure.exit_code() });
    if let (Some(problem), Some(members)) = (problem, value.as_object_mut()) {
        members.insert("problem".to_owned(), Value::Object(problem.clone()));
    }
    value
}

/// Whether people watch stderr, so that progress may be drawn there.
pub(super) fn people_watch() -> bool {
    std::io::stderr().is_terminal()
}

/// Makes an empty table of the house style.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH_MAX);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    table
}

/// The schema versions that a node reads, in words; none when it does not say.
pub(super) fn schema_range(reads: Option<&Value>) -> String {
    let of = |name: &str| reads.and_then(|reads| reads.get(name)).and_then(Value::as_u64);
    match (of("oldest"), of("newest")) {
        (Some(oldest), Some(newest)) => format!("{oldest}-{newest}"),
        (Some(_) | None, Some(_) | None) => String::new(),
    }
}

/// Shows one object as two columns, nested members as `outer.inner`, objects in lists as
/// `outer.0.inner`; what people look for stands first.
pub(super) fn members(value: &Value) -> Table {
    let mut table = table(&[]);
    rows_of(&mut table, "", value);
    table
}

fn rows_of(table: &mut Table, prefix: &str, value: &Value) {
    let Some(object) = value.as_object() else {
        table.add_row(vec![prefix.to_owned(), cell(value)]);
        return;
    };
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    let mut sorted: Vec<(&String, &Value)> = object.iter().collect();
    sorted.sort_by_key(|(name, _)| place(name));
    for (name, member) in sorted {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match member {
            Value::Object(inner) if !inner.is_empty() => rows_of(table, &name, member),
            Value::Array(list) if list.iter().any(Value::is_object) => {
                for (at, one) in list.iter().enumerate() {
                    rows_of(table, &format!("{name}.{at}"), one);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                table.add_row(vec![name, cell(member)]);
            }
        }
    }
}

/// Shows a list of objects, one a row, with these columns (`outer.inner` reaches into members).
pub(super) fn rows(list: &[Value], columns: &[&str]) -> Table {
    let mut table = table(columns);
    for row in list {
        table.add_row(columns.iter().map(|column| {
            let path = format!("/{}", column.replace('.', "/"));
            row.pointer(&path).map(cell).unwrap_or_default()
        }));
    }
    table
}

/// Returns the list in `value`: itself, or its first member that is a list.
pub(super) fn list_in(value: &Value) -> &[Value] {
    let inner = value.as_array().or_else(|| {
        value.as_object().and_then(|members| members.values().find_map(Value::as_array))
    });
    inner.map(Vec::as_slice).unwrap_or_default()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_object_becomes_one_row_a_leaf() {
        let text = members(&json!({"a": {"b": 1, "c": null}, "d": [1, "x"]})).to_string();
        for expected in ["a.b", "a.c", "1, x"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn what_people_look_for_stands_first_and_nothing_is_wider_than_the_bound() {
        let hold = json!({"buyer": "ann", "expires_at": "t", "id": "h1", "item": "x",
            "long": "w ".repeat(200), "list": [{"held": 1}, {"held": 2}]});
        let text = members(&hold).to_string();
        let at = |words: &str| text.find(words).expect("it is there");
        assert!(at("h1") < at("ann") && at("ann") < at("long"), "{text}");
        assert!(text.contains("list.1.held"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH_MAX)), "{text}");
    }

    #[test]
    fn every_failure_has_one_shape_for_programs() {
        let problem = crate::client::Problem::from_members(409, serde_json::Map::new(), None);
        for (failure, code) in [
            (Failure::Refused(problem), 1),
            (Failure::Broken("b".into()), 1),
            (Failure::Usage("u".into()), 2),
            (Failure::Unavailable("n".into()), 3),
        ] {
            let value = as_json(&failure);
            assert_eq!(value["exit_code"], code);
            assert!(value["error"].is_string(), "{value}");
            assert_eq!(value.get("problem").is_some(), matches!(failure, Failure::Refused(_)));
        }
    }

    #[test]
    fn a_column_that_a_row_lacks_is_empty() {
        let list = [json!({"id": "h1", "stock": {"held": 3}}), json!({"id": "h2"})];
        let text = rows(&list, &["id", "stock.held"]).to_string();
        assert!(text.contains("h2") && text.contains('3'), "{text}");
    }
}
