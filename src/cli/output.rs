//! How a verb speaks: data on stdout (JSON or a table), words on stderr.
//!
//! Never panics because the reader of a pipe has gone.

use std::io::{IsTerminal, Write};

use comfy_table::{Table, presets};

use serde_json::{Value, json};

use super::Failure;

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
        // A reader that has gone (`| head`) is no error.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// Says something to people.
    pub(super) fn say(self, words: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{words}");
    }

    /// Tells a failure: the words on stderr, with `--json` the problem on stdout too.
    pub(super) fn failure(self, failure: &Failure) {
        self.say(&format!("holdfast: {failure}"));
        if !self.json {
            return;
        }
        let value = match failure {
            Failure::Refused(problem) => json!({ "problem": problem.members }),
            Failure::Broken(words) | Failure::Usage(words) | Failure::Unavailable(words) => {
                json!({ "error": words })
            }
        };
        self.line(&value.to_string());
    }
}

/// Whether people watch stderr, so that progress may be drawn there.
pub(super) fn people_watch() -> bool {
    std::io::stderr().is_terminal()
}

/// Makes an empty table of the house style.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    table
}

/// Shows one object as two columns, nested members as `outer.inner`.
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
    for (name, member) in object {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match member {
            Value::Object(inner) if !inner.is_empty() => rows_of(table, &name, member),
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
    fn a_column_that_a_row_lacks_is_empty() {
        let list = [json!({"id": "h1", "stock": {"held": 3}}), json!({"id": "h2"})];
        let text = rows(&list, &["id", "stock.held"]).to_string();
        assert!(text.contains("h2") && text.contains('3'), "{text}");
    }
}
