//! Golden scripts: every rule of the ledger as a text that a person can read, with the answers.
//!
//! Each file under `tests/golden/` is one rule; its name is the rule as a sentence. The language is
//! described in `tests/golden/script.rs`. `GOLDEN=write cargo test --test golden` rewrites the
//! answers in the files, for an author who then reviews the difference.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

#[path = "ledger_model/laws.rs"]
mod laws;
#[path = "golden/script.rs"]
mod script;
#[path = "golden/words.rs"]
mod words;

use script::World;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn scripts() -> Vec<PathBuf> {
    let entries = fs::read_dir(FOLDER).expect("the folder of the scripts");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut scripts: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    scripts.sort();
    scripts
}

/// Runs one script; returns it as it should read, and every difference as `file:line: …`.
fn run(path: &Path) -> (String, Vec<String>) {
    let text = fs::read_to_string(path).expect("a readable script");
    let file = path.file_name().expect("a file").to_string_lossy().into_owned();
    let mut world = World::new();
    let (mut written, mut faults) = (String::new(), Vec::new());
    if !text.starts_with("# ") {
        faults.push(format!("{file}:1: a script begins with its rule as a comment"));
    }
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        written += line;
        written.push('\n');
        let command = line.split('#').next().unwrap_or("").trim();
        let mut expected = Vec::new();
        while let Some((_, next)) = lines.next_if(|(_, next)| next.trim().starts_with("->")) {
            expected.push(next.trim().trim_start_matches("->").trim().to_string());
        }
        if command.is_empty() {
            continue;
        }
        let ran = catch_unwind(AssertUnwindSafe(|| world.run(command)));
        let got = match ran {
            Ok(Ok(got)) => got,
            Ok(Err(why)) => vec![format!("not a line of a script: {why}")],
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let short = panic.downcast_ref::<&str>().map(|text| text.to_string());
                let why = text.or(short).unwrap_or("a panic without words".to_string());
                faults.push(format!("{file}:{}: `{command}` panics: {why}", at + 1));
                written += &expected.iter().map(|line| format!("-> {line}\n")).collect::<String>();
                written += &lines.map(|(_, line)| format!("{line}\n")).collect::<String>();
                break;
            }
        };
        for answer in &got {
            written += &format!("-> {answer}\n");
        }
        if got != expected {
            faults.push(format!(
                "{file}:{}: `{command}`\n    expected: {}\n    got:      {}",
                at + 1,
                expected.join("\n              "),
                got.join("\n              ")
            ));
        }
    }
    (written, faults)
}

#[test]
fn every_golden_script_is_answered_as_it_is_written() {
    let write = std::env::var("GOLDEN").is_ok_and(|mode| mode == "write");
    let mut faults = Vec::new();
    let scripts = scripts();
    assert!(scripts.len() >= 40, "only {} scripts were found in {FOLDER}", scripts.len());
    for path in &scripts {
        let (written, differences) = run(path);
        if write {
            fs::write(path, written).expect("a script that can be written");
        }
        faults.extend(differences);
    }
    if write {
        println!("{} scripts rewritten: review the difference", scripts.len());
        return;
    }
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_script_with_a_wrong_answer_is_found() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = folder.path().join("wrong.txt");
    let script = "# A wrong one.\ndefine shop/x total=1\n-> item number=1 total=2 open created\n";
    fs::write(&path, script).expect("written");
    let (_, faults) = run(&path);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("wrong.txt:2:"), "{faults:?}");
}

#[test]
fn every_command_and_every_refusal_of_the_ledger_has_a_script() {
    let all: String =
        scripts().iter().map(|path| fs::read_to_string(path).expect("a script")).collect();
    let commands = [
        "define",
        "adjust",
        "pause",
        "resume",
        "close",
        "retire",
        "place",
        "extend",
        "confirm",
        "release",
        "return",
        "void",
        "advance",
        "open",
        "send",
        "accept",
        "settle",
        "spread",
        "layout",
        "configure",
        "answered",
        "erase",
        "lower_begin",
        "lower_commit",
        "lower_abort",
        "delete_begin",
        "delete_abort",
        "delete_commit",
        "move",
    ];
    let refusals = [
        "sold-out",
        "insufficient-stock",
        "buyer-limit",
        "item-paused",
        "item-closed",
        "sale-not-open",
        "key-voided",
        "key-reused",
        "hold-expired",
        "hold-confirmed",
        "hold-released",
        "not-sold",
        "extend-budget-spent",
        "invalid",
        "item-not-found",
        "region-not-found",
        "hold-not-found",
        "stock-committed",
        "open-holds",
        "use-adjustments",
        "revision-mismatch",
        "not-owner",
        "transfer-refused",
        "under-way",
        "not-under-way",
        "not-answered",
        "lower-in-steps",
    ];
    let has = |start: String| all.lines().any(|line| line.starts_with(&start));
    for command in commands {
        assert!(has(format!("{command} ")) || has(command.to_string()), "no script: {command}");
    }
    for refusal in refusals {
        assert!(has(format!("-> refused {refusal}")), "no script is refused: {refusal}");
    }
}
