//! The house rules, executed: the import table of the design as data, banned names, sizes, and
//! calls that only some files may make.
//!
//! Each rule is one function from a file to its faults, one test that holds it against every file,
//! and one test that feeds it a bad sample, as a check that cannot fail checks nothing. A fault
//! says where it is and what to do. `make generated` brings `docs/cases.md` up to date.

#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use source::{Source, closing, functions, line_of, names_under, test_modules, words};

// The tables.

/// The rooms of `src/` and their floors: a room imports only from lower ones.
const FLOORS: [(&str, u8); 18] = [
    ("main", 8),
    ("lib", 8),
    ("cli", 7),
    ("node", 6),
    ("http", 5),
    ("steward", 5),
    ("shard", 4),
    ("raft", 3),
    ("storage", 2),
    ("peer", 2),
    ("client", 2),
    ("ledger", 1),
    ("api", 1),
    ("codec", 1),
    ("config", 1),
    ("clock", 1),
    ("runtime", 1),
    // Asked by the ledger too; a constant without its feature.
    ("planted", 0),
];

/// Imports between two rooms of one floor, each with its reason.
const BESIDE: [(&str, &str, &str); 2] = [
    ("clock", "ledger", "wall time is told in the ledger's unit, UnixMs"),
    ("clock", "runtime", "in the simulator wall time is virtual time"),
];

/// Crates that only these places of `src/` may name.
const CRATES: [(&str, &[&str]); 6] = [
    ("openraft", &["src/raft/"]),
    ("openraft_rt", &["src/raft/", "src/runtime.rs", "src/runtime/"]),
    ("openraft_rt_tokio", &["src/raft/", "src/runtime.rs", "src/runtime/"]),
    ("openraft_rt_sim", &["src/raft/", "src/runtime.rs", "src/runtime/"]),
    ("sled", &["src/storage/"]),
    ("axum", &["src/http/"]),
];

/// Names that say nothing about what is inside.
const BANNED_NAMES: [&str; 9] =
    ["util", "utils", "common", "helpers", "misc", "base", "core", "types", "manager"];

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Characters of a line.
const COLUMNS_MAX: usize = 100;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 100;
/// Functions that may be longer: (file, function). Each needs a reason in its own comment.
const LONG_FUNCTIONS: [(&str, &str); 0] = [];

/// Calls that only these places of `src/` may make, and what the others do instead.
const CALLS: [(&str, &[&str], &str); 10] = [
    ("SystemTime::now", &["src/clock.rs"], "ask the WallClock that you were given"),
    ("Timestamp::now", &["src/clock.rs"], "ask the WallClock that you were given"),
    ("Zoned::now", &["src/clock.rs"], "ask the WallClock that you were given"),
    ("Instant::now", REAL_CLOCK, "call crate::runtime::now"),
    ("tokio::spawn", REAL_TIME, "call crate::runtime::spawn"),
    ("tokio::task", REAL_TIME, "call crate::runtime::spawn or yield_now"),
    ("tokio::time", REAL_TIME, "call crate::runtime::sleep or timeout"),
    ("task::spawn", REAL_TIME, "call crate::runtime::spawn"),
    ("spawn_blocking", REAL_TIME, "give the work to a thread that owns it, in storage/"),
    ("thread::sleep", &["src/cli/", "src/storage/"], "call crate::runtime::sleep"),
];

/// Files that never run in the simulator: they own sockets, terminals and processes.
const REAL_TIME: &[&str] = &["src/runtime.rs", "src/runtime/", "src/http/serve", "src/cli/"];

/// Files that may read the machine's monotonic clock: those, and the wait for sled's file lock.
const REAL_CLOCK: &[&str] =
    &["src/runtime.rs", "src/http/serve", "src/cli/", "src/storage/pages/sled_store.rs"];

/// Parts of `std` that read the world, which the ledger may not know.
const WORLDLY: [&str; 7] = ["time", "fs", "io", "net", "env", "thread", "process"];

/// Words that the ledger may not know: they wait, log, round, or differ between two replicas.
const IMPURE: [&str; 19] = [
    "std::sync::atomic",
    "std::sync::mpsc",
    "Mutex",
    "RwLock",
    "OnceLock",
    "LazyLock",
    "tokio",
    "async",
    "await",
    "rand",
    "tracing",
    "println",
    "eprintln",
    "f32",
    "f64",
    "RandomState",
    "HashMap::new",
    "HashSet::new",
    "HashMap::with_capacity",
];

/// Where a test may wait by the clock, each with its reason.
const SLEEPS: [(&str, &str); 5] = [
    ("tests/simulation", "time is virtual there"),
    ("tests/peer_sim.rs", "time is virtual there"),
    ("tests/wal_driver.rs", "between two looks at another thread, never instead of looking"),
    ("tests/cluster/", "between two looks at a real process, never instead of looking"),
    ("tests/node_parts/", "between two looks at whole nodes, never instead of looking"),
];

/// Keys of the configuration that nothing reads yet. A key without effect is a lie: this list stays
/// empty.
const UNREAD_KEYS: &[&str] = &[];

/// Keys that are read through a method of their section: (key, method).
const KEY_METHODS: [(&str, &str); 3] = [
    ("advertise", "advertised"),
    ("threads", "thread_count"),
    ("finish_lane_percent", "finish_lane"),
];

// The files.

fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// Returns the paths of the project's files, from the root, sorted; build output left out.
fn paths() -> Vec<String> {
    fn walk(root: &Path, under: &str, found: &mut Vec<String>) {
        let entries = std::fs::read_dir(root.join(under)).expect("the project can be listed");
        for entry in entries {
            let entry = entry.expect("the project can be listed");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if under.is_empty() { name.clone() } else { format!("{under}/{name}") };
            let hidden = name.starts_with('.') && name != ".ci" && name != ".gitignore";
            let kind = entry.file_type().expect("the project can be listed");
            if kind.is_dir() && !hidden && !["target", "data"].contains(&path.as_str()) {
                walk(root, &path, found);
            } else if kind.is_file() && !hidden {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

/// Returns the Rust files under these folders.
fn sources(folders: &[&str]) -> Vec<Source> {
    let read = |path: &String| std::fs::read_to_string(root().join(path)).expect("it is UTF-8");
    let wanted = |path: &&String| {
        path.ends_with(".rs") && folders.iter().any(|folder| path.starts_with(folder))
    };
    let mut files: Vec<Source> =
        paths().iter().filter(wanted).map(|path| Source::new(path, &read(path))).collect();
    assert!(!files.is_empty(), "no Rust file under {folders:?}");
    let mut tests = BTreeSet::new();
    for file in &files {
        let stem = file.path.trim_end_matches(".rs");
        let folder = ["/mod", "/lib", "/main"].iter().find_map(|face| stem.strip_suffix(face));
        for module in test_modules(&file.code) {
            tests.insert(format!("{}/{module}", folder.unwrap_or(stem)));
        }
    }
    for file in &mut files {
        let stem = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
        if tests.iter().any(|module| within(stem, module)) {
            file.mark_as_tests();
        }
    }
    files
}

/// Tells whether a path without its ending is a module's, or that of one inside it.
fn within(stem: &str, module: &str) -> bool {
    stem.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn shipped_sources() -> Vec<Source> {
    sources(&["src/", "jepsen/"])
}

fn all_sources() -> Vec<Source> {
    sources(&["src/", "jepsen/", "tests/"])
}

/// Holds a rule against files and fails with every fault.
fn hold(rule: fn(&Source) -> Vec<String>, files: &[Source]) {
    let faults: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(faults.is_empty(), "\n{} faults:\n{}\n", faults.len(), faults.join("\n"));
}

fn fault(file: &Source, at: usize, words: &str) -> String {
    format!("{}:{}: {words}", file.path, line_of(&file.code, at))
}

fn stands_in(file: &Source, places: &[&str]) -> bool {
    places.iter().any(|place| file.path.starts_with(place))
}

/// Returns the room of a file of `src/`: its first folder or its own name.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    Some(inside.split(['/', '.']).next().unwrap_or(inside))
}

fn floor(room: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

// The rules.

fn imports_that_climb(file: &Source) -> Vec<String> {
    let Some(here) = room(&file.path) else { return Vec::new() };
    let Some(own) = floor(here) else {
        return vec![format!("{}: `{here}` is no room; add it to FLOORS and design §4", file.path)];
    };
    let mut faults = Vec::new();
    for (at, there) in names_under(&file.shipped, "crate") {
        let allowed = match floor(&there) {
            _ if there == here || own == 8 => true,
            Some(other) if other == own => {
                BESIDE.iter().any(|(from, to, _)| *from == here && *to == there)
            }
            Some(other) => other < own,
            None => false,
        };
        if !allowed {
            let words = format!(
                "`{here}` (floor {own}) may not import `crate::{there}`; take what you need as an \
                 argument, or move the word down"
            );
            faults.push(fault(file, at, &words));
        }
    }
    // As many `super::` as the file is deep reach the crate's root and hide an import.
    let face = file.path.ends_with("/mod.rs");
    let depth = file.path.matches('/').count() - usize::from(face);
    let climb = "super::".repeat(depth);
    for at in words(&file.shipped, "super") {
        if depth > 0 && own < 8 && file.shipped[at..].starts_with(&climb) {
            faults.push(fault(file, at, "this `super::` leaves the room; write `crate::room::…`"));
        }
    }
    faults
}

fn crates_out_of_place(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, places) in CRATES {
        if stands_in(file, places) || !file.path.starts_with("src/") {
            continue;
        }
        for at in words(&file.code, name) {
            let words =
                format!("`{name}` is named only in {places:?}; go through that room's face");
            faults.push(fault(file, at, &words));
        }
    }
    faults
}

fn judge_that_knows_the_judged(file: &Source) -> Vec<String> {
    if !file.path.starts_with("jepsen/") {
        return Vec::new();
    }
    let told = "the partition suite talks HTTP only and never names `holdfast`; copy what you need";
    words(&file.code, "holdfast").map(|at| fault(file, at, told)).collect()
}

fn banned_names(file: &Source) -> Vec<String> {
    let told = |name: &str| format!("`{name}` says nothing: name it after a noun of the domain");
    let mut faults = Vec::new();
    for part in file.path.trim_end_matches(".rs").split('/') {
        if BANNED_NAMES.contains(&part) {
            faults.push(format!("{}: {}", file.path, told(part)));
        }
    }
    for at in words(&file.code, "mod") {
        let name = file.code[at + 3..].split_whitespace().next().unwrap_or_default();
        let name = name.trim_end_matches([';', '{']);
        if BANNED_NAMES.contains(&name) {
            faults.push(fault(file, at, &told(name)));
        }
    }
    faults
}

fn files_too_long(file: &Source) -> Vec<String> {
    let own = file.code.lines().zip(file.shipped.lines());
    let lines = own.filter(|(all, shipped)| all == shipped).count();
    let counted = if file.shipped.trim().is_empty() { 0 } else { lines };
    if counted <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{}: {counted} lines without tests; split it by a noun of the domain", file.path)]
}

fn lines_too_wide(file: &Source) -> Vec<String> {
    let wide = |line: &&str| line.chars().count() > COLUMNS_MAX;
    let numbered = file.text.lines().zip(1..).filter(|(line, _)| wide(line));
    numbered.map(|(_, n)| format!("{}:{n}: wider than {COLUMNS_MAX} columns", file.path)).collect()
}

fn functions_too_long(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, first, last) in functions(&file.code) {
        let lines = last - first + 1;
        let excused = LONG_FUNCTIONS.contains(&(file.path.as_str(), name.as_str()));
        if lines > FUNCTION_LINES_MAX && !excused {
            let at = format!("{}:{first}", file.path);
            faults.push(format!("{at}: `{name}` has {lines} lines; give its steps names"));
        }
    }
    faults
}

fn missing_first_words(file: &Source) -> Vec<String> {
    let begins = file.text.starts_with("//! ") || file.text.starts_with("//!\n");
    let told = "begin with `//!`: what this file is, what it promises, what it never does";
    if begins { Vec::new() } else { vec![format!("{}:1: {told}", file.path)] }
}

fn unwraps(file: &Source) -> Vec<String> {
    let told = "say why it cannot fail: `.expect(\"why\")`, or handle it";
    let found = words(&file.shipped, "unwrap");
    found
        .filter(|at| file.shipped[..*at].ends_with('.') && file.shipped[*at..].contains("()"))
        .filter(|at| file.shipped[at + 6..].trim_start().starts_with("()"))
        .map(|at| fault(file, at, told))
        .collect()
}

fn unfinished_work(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for name in ["todo", "unimplemented", "dbg"] {
        for at in words(&file.code, name) {
            if file.code[at + name.len()..].starts_with('!') {
                faults.push(fault(file, at, &format!("`{name}!` is not finished work; finish it")));
            }
        }
    }
    for at in words(&file.code, "ignore") {
        if file.code[..at].trim_end().ends_with("#[") {
            faults.push(fault(
                file,
                at,
                "an ignored test proves nothing: make it run or delete it",
            ));
        }
    }
    faults
}

fn calls_out_of_place(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    if !file.path.starts_with("src/") {
        return faults;
    }
    for (call, places, instead) in CALLS {
        if stands_in(file, places) {
            continue;
        }
        let told = format!("`{call}` belongs to {places:?}; {instead}");
        faults.extend(words(&file.shipped, call).map(|at| fault(file, at, &told)));
        // The same in braces: `use tokio::{spawn, time}`.
        if let Some(name) = call.strip_prefix("tokio::") {
            let braced = names_under(&file.shipped, "tokio").into_iter();
            let braced = braced
                .filter(|(at, found)| found == name && !file.shipped[*at..].starts_with("tokio"));
            faults.extend(braced.map(|(at, _)| fault(file, at, &told)));
        }
    }
    faults
}

fn impurities_of_the_ledger(file: &Source) -> Vec<String> {
    if room(&file.path) != Some("ledger") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for name in IMPURE {
        let told = format!("the ledger is pure and knows no `{name}`; every replica must agree");
        faults.extend(words(&file.shipped, name).map(|at| fault(file, at, &told)));
    }
    for (at, name) in names_under(&file.shipped, "std") {
        if WORLDLY.contains(&name.as_str()) {
            let told = format!("the ledger is pure and knows no `std::{name}`; pass it as data");
            faults.push(fault(file, at, &told));
        }
    }
    faults
}

fn unbounded_channels(file: &Source) -> Vec<String> {
    let told = "no unbounded channel: give it a limit that has a name in config.rs";
    let mut faults = Vec::new();
    for name in ["unbounded_channel", "UnboundedSender", "UnboundedReceiver", "unbounded"] {
        faults.extend(words(&file.code, name).map(|at| fault(file, at, told)));
    }
    for at in words(&file.code, "channel") {
        let mut rest = &file.code[at + "channel".len()..];
        if rest.starts_with("::<") {
            rest = &rest[rest.find('(').unwrap_or(0)..];
        }
        let call = rest.starts_with('(');
        let empty = call && rest[1..closing(rest, 0) - 1].trim().is_empty();
        let declared = file.code[..at].trim_end().ends_with("fn");
        if empty && !declared && !file.code[..at].ends_with("oneshot::") {
            let words = format!("{told} (`sync_channel(n)`, or spell out `oneshot::channel()`)");
            faults.push(fault(file, at, &words));
        }
    }
    faults
}

fn sleeps_in_tests(file: &Source) -> Vec<String> {
    if SLEEPS.iter().any(|(place, _)| file.path.starts_with(place)) {
        return Vec::new();
    }
    let told = "a test never sleeps: move a manual clock, or wait for the event itself";
    let code = file.tests();
    let names = ["sleep", "sleep_until", "sleep_ms"];
    names
        .iter()
        .flat_map(|name| words(&code, name).collect::<Vec<_>>())
        .filter(|at| code[*at..].split_once('(').is_some_and(|(name, _)| name.len() < 12))
        .map(|at| fault(file, at, told))
        .collect()
}

fn paths_of_a_machine(path: &str, text: &str) -> Vec<String> {
    // Spelled apart, or this file would break its own rule.
    let places = ["ho me", "ro ot", "wo rk", "Us ers"];
    let mut faults = Vec::new();
    for (line, n) in text.lines().zip(1..) {
        for place in places.map(|place| format!("/{}/", place.replace(' ', ""))) {
            let absolute = line.match_indices(&place).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && !"._-}*".contains(c))
            });
            if absolute {
                faults.push(format!("{path}:{n}: `{place}` is a place on one machine"));
            }
        }
    }
    faults
}

/// Returns the keys `section.name` of a TOML file made by the configuration.
fn keys_of(toml: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            keys.push((section.clone(), name.to_owned()));
        }
    }
    keys
}

fn keys_without_effect(toml: &str, files: &[Source], excused: &[&str]) -> Vec<String> {
    let read = |name: &str| {
        let outside = files.iter().filter(|file| room(&file.path).is_some_and(|r| r != "config"));
        outside.into_iter().any(|file| {
            words(&file.shipped, name).any(|at| file.shipped[..at].trim_end().ends_with('.'))
        })
    };
    let mut faults = Vec::new();
    for (section, name) in keys_of(toml) {
        let path = format!("{section}.{name}");
        let method = KEY_METHODS.iter().find(|(key, _)| *key == name).map(|(_, method)| *method);
        if !read(&name) && !method.is_some_and(read) && !excused.contains(&path.as_str()) {
            faults.push(format!("{path}: no code reads this key; read it or delete it"));
        }
    }
    faults
}

/// Returns a table of cases with `planned: ` before each test that is not there, and before no
/// other, and a fault for each test that does not name its case. `read` gives a file's text.
/// Whether a test file names a case: as `L01`, or in a function's name.
fn names_case(text: &str, case: &str) -> bool {
    let low = case.to_lowercase();
    text.contains(case) || text.contains(&format!("_{low}")) || text.contains(&format!("fn {low}_"))
}

fn cases_marked(table: &str, read: impl Fn(&str) -> Option<String>) -> (String, Vec<String>) {
    let (mut marked, mut faults) = (String::new(), Vec::new());
    for line in table.lines() {
        let case = line.split('|').nth(2).unwrap_or_default().trim();
        let plain = line.replace("planned: `", "`");
        for (place, part) in plain.split('`').enumerate() {
            if place % 2 == 0 {
                marked += part;
                continue;
            }
            let text = if part.starts_with("tests/") { read(part) } else { Some(case.to_owned()) };
            match text {
                None => marked += "planned: ",
                Some(text) if names_case(&text, case) => {}
                Some(_) => faults.push(format!("{part} does not name the case {case} it covers")),
            }
            marked += &format!("`{part}`");
        }
        marked.push('\n');
    }
    (marked, faults)
}

// Each rule, held against every file.

#[test]
fn rooms_import_only_from_lower_floors() {
    hold(imports_that_climb, &sources(&["src/"]));
}

#[test]
fn every_room_of_the_table_exists() {
    let paths = paths();
    for (room, _) in FLOORS {
        let exists = paths.iter().any(|path| {
            *path == format!("src/{room}.rs") || path.starts_with(&format!("src/{room}/"))
        });
        assert!(exists, "`{room}` stands in FLOORS and not in src/; strike it out");
    }
}

#[test]
fn each_library_is_named_only_in_its_room() {
    hold(crates_out_of_place, &sources(&["src/"]));
}

#[test]
fn partition_suite_shares_no_code_with_what_it_judges() {
    hold(judge_that_knows_the_judged, &sources(&["jepsen/"]));
    let manifest = std::fs::read_to_string(root().join("jepsen/Cargo.toml")).expect("it is there");
    let depends = |line: &str| line.starts_with("holdfast") || line.contains("path = \"..");
    assert!(!manifest.lines().any(depends), "jepsen/Cargo.toml may not depend on holdfast");
}

#[test]
fn no_file_or_module_has_a_name_that_says_nothing() {
    hold(banned_names, &all_sources());
}

#[test]
fn no_file_outgrows_its_size() {
    hold(files_too_long, &shipped_sources());
}

#[test]
fn no_line_is_wider_than_the_page() {
    hold(lines_too_wide, &all_sources());
}

#[test]
fn no_function_outgrows_its_size() {
    hold(functions_too_long, &all_sources());
}

#[test]
fn every_excused_function_still_needs_its_excuse() {
    let files = all_sources();
    for (path, name) in LONG_FUNCTIONS {
        let long = files.iter().filter(|file| file.path == path).any(|file| {
            let long = |(n, first, last): &(String, usize, usize)| {
                n == name && last - first + 1 > FUNCTION_LINES_MAX
            };
            functions(&file.code).iter().any(long)
        });
        assert!(long, "{path}: `{name}` is short or gone; strike it out of LONG_FUNCTIONS");
    }
}

#[test]
fn every_file_says_what_it_is() {
    hold(missing_first_words, &all_sources());
}

#[test]
fn shipped_code_never_unwraps() {
    hold(unwraps, &shipped_sources());
}

#[test]
fn nothing_is_left_unfinished_or_ignored() {
    hold(unfinished_work, &all_sources());
}

#[test]
fn time_and_tasks_come_from_the_runtime_and_the_clock() {
    hold(calls_out_of_place, &sources(&["src/"]));
}

#[test]
fn ledger_knows_nothing_of_the_world() {
    hold(impurities_of_the_ledger, &sources(&["src/"]));
}

#[test]
fn every_channel_is_bounded() {
    hold(unbounded_channels, &sources(&["src/"]));
}

#[test]
fn no_test_sleeps() {
    hold(sleeps_in_tests, &all_sources());
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    let mut faults = Vec::new();
    for path in paths() {
        if let Ok(text) = std::fs::read_to_string(root().join(&path)) {
            faults.extend(paths_of_a_machine(&path, &text));
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_key_of_the_configuration_has_an_effect() {
    let toml = std::fs::read_to_string(root().join("config/holdfast.toml")).expect("it is there");
    let faults = keys_without_effect(&toml, &sources(&["src/"]), UNREAD_KEYS);
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn table_of_cases_tells_which_tests_exist() {
    let path = root().join("docs/cases.md");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let (head, rest) = text.split_once("\n| 1 |").expect("the table begins with case 1");
    let (table, tail) = rest.split_once("\n\n").expect("the table ends with an empty line");
    let table = format!("| 1 |{table}");
    assert_eq!(table.lines().count(), 73, "the collection has 73 cases");
    let (marked, faults) =
        cases_marked(&table, |test| std::fs::read_to_string(root().join(test)).ok());
    if std::env::var_os("REGENERATE").is_some() {
        std::fs::write(&path, format!("{head}\n{marked}\n{tail}")).expect("it can be written");
    } else {
        assert!(marked.trim_end() == table, "docs/cases.md is not up to date; `make generated`");
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

// Each rule, fed bad samples that it must notice and good ones that it must pass.

/// Asserts how many faults a rule finds in a file with this path and text.
#[track_caller]
fn finds(rule: fn(&Source) -> Vec<String>, path: &str, text: &str, count: usize) {
    let faults = rule(&Source::new(path, text));
    assert_eq!(faults.len(), count, "{path}: {text}\n{faults:?}");
}

#[test]
fn import_that_climbs_is_noticed() {
    let rule = imports_that_climb;
    finds(rule, "src/shard/gate.rs", "use crate::http::Router;", 1);
    finds(rule, "src/steward/mod.rs", "use crate::http::Router;", 1);
    finds(rule, "src/shard/gate.rs", "use crate::{ledger::{Ledger, http}, node::Node, raft};", 1);
    finds(rule, "src/ledger/bucket.rs", "fn f() -> crate::codec::CodecError {}", 1);
    finds(rule, "src/storage/log.rs", "fn f(p: crate::peer::Peer) {}", 1);
    finds(rule, "src/shard/gate.rs", "use crate::nowhere::X;", 1);
    finds(rule, "src/attic.rs", "fn f() {}", 1);
    finds(rule, "src/codec.rs", "use super::node::Node;", 1);
    finds(rule, "src/http/items.rs", "use super::super::node::Node;", 1);
    finds(rule, "src/http/items.rs", "use super::problem::Problem;\nuse crate::shard::Gate;", 0);
    finds(rule, "src/clock.rs", "use crate::ledger::UnixMs;", 0);
    finds(rule, "src/ledger/mod.rs", "// crate::http\nconst A: &str = \"crate::http::x\";", 0);
    finds(rule, "src/codec.rs", "#[cfg(test)]\nmod tests { use super::*; use crate::node::N; }", 0);
    finds(rule, "src/lib.rs", "use crate::node::Node;", 0);
}

#[test]
fn library_out_of_place_is_noticed() {
    finds(crates_out_of_place, "src/shard/gate.rs", "use openraft::Raft;", 1);
    finds(crates_out_of_place, "src/raft/mod.rs", "use sled::Db;", 1);
    finds(crates_out_of_place, "src/node.rs", "use axum as web;", 1);
    finds(crates_out_of_place, "src/node.rs", "fn f() { openraft_rt_sim::SimRuntime::new() }", 1);
    finds(crates_out_of_place, "src/runtime.rs", "use openraft_rt::Instant;", 0);
    finds(crates_out_of_place, "src/runtime.rs", "use openraft::Raft;", 1);
    finds(crates_out_of_place, "src/raft/mod.rs", "use openraft::Raft; // sled, axum", 0);
}

#[test]
fn judge_that_names_the_judged_is_noticed() {
    let rule = judge_that_knows_the_judged;
    finds(rule, "jepsen/src/model.rs", "use holdfast::api::Hold;", 1);
    finds(rule, "jepsen/src/model.rs", "const BINARY: &str = \"holdfast\"; // holdfast::", 0);
}

#[test]
fn name_that_says_nothing_is_noticed() {
    finds(banned_names, "src/http/utils.rs", "", 1);
    finds(banned_names, "tests/common/mod.rs", "", 1);
    finds(banned_names, "src/lib.rs", "pub mod helpers;", 1);
    finds(banned_names, "src/lib.rs", "mod types { }", 1);
    finds(banned_names, "src/http/problem.rs", "use std::fmt; // mod util;\nmod problem;", 0);
}

#[test]
fn size_that_is_outgrown_is_noticed() {
    let long = "fn f() {}\n".repeat(FILE_LINES_MAX + 1);
    finds(files_too_long, "src/node.rs", &long, 1);
    finds(files_too_long, "src/node.rs", &long[10..], 0);
    finds(files_too_long, "src/node.rs", &format!("#[cfg(test)]\nmod tests {{\n{long}}}\n"), 0);
    finds(files_too_long, "src/node/tests.rs", &long, 0);

    finds(lines_too_wide, "src/node.rs", &"é".repeat(COLUMNS_MAX), 0);
    finds(lines_too_wide, "src/node.rs", &"é".repeat(COLUMNS_MAX + 1), 1);

    let body = |lines: usize| format!("fn f() {{\n{}}}\n", "a();\n".repeat(lines - 2));
    finds(functions_too_long, "src/node.rs", &body(FUNCTION_LINES_MAX), 0);
    finds(functions_too_long, "src/node.rs", &body(FUNCTION_LINES_MAX + 1), 1);
    finds(functions_too_long, "src/node.rs", &format!("trait T {{ fn g(); {} }}", body(200)), 1);
    finds(functions_too_long, "src/node.rs", &format!("fn g(x: [u8; 2]) {}", &body(101)[6..]), 1);
}

#[test]
fn file_without_first_words_is_noticed() {
    finds(missing_first_words, "src/node.rs", "use std::fmt;", 1);
    finds(missing_first_words, "src/node.rs", "// A comment.", 1);
    finds(missing_first_words, "src/node.rs", "//! The node.", 0);
}

#[test]
fn unwrap_in_shipped_code_is_noticed() {
    finds(unwraps, "src/node.rs", "fn f() { g()\n  .unwrap(); }", 1);
    finds(unwraps, "src/node.rs", "fn f() { g().unwrap_or(1); h.expect(\"1 is 1\") }", 0);
    finds(unwraps, "src/node.rs", "// g().unwrap()\n#[cfg(test)] mod tests { g().unwrap() }", 0);
    finds(unwraps, "src/node.rs", "const A: char = '\"'; fn f() { g().unwrap() } // \"", 1);
    finds(unwraps, "src/node.rs", "#[cfg(not(test))]\nfn f() { g().unwrap() }", 1);
    finds(unwraps, "src/node.rs", "const A: &str = r#\"\"g().unwrap()\"#;", 0);
    finds(
        unwraps,
        "src/node.rs",
        "/* /* */ g().unwrap() */ fn f<'a>(x: &'a str) { x.unwrap() }",
        1,
    );
}

#[test]
fn unfinished_work_is_noticed() {
    finds(unfinished_work, "src/node.rs", "fn f() { todo!(\"later\") }", 1);
    finds(unfinished_work, "tests/a.rs", "fn f() { unimplemented!(); dbg!(1) }", 2);
    finds(unfinished_work, "tests/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}", 1);
    finds(unfinished_work, "src/node.rs", "// todo!()\nfn f(todo: u8) { ignore(\"dbg!()\") }", 0);
}

#[test]
fn call_out_of_place_is_noticed() {
    let rule = calls_out_of_place;
    finds(rule, "src/shard/gate.rs", "let t = SystemTime::now();", 1);
    finds(rule, "src/shard/gate.rs", "let t = std::time::Instant::now();", 1);
    finds(rule, "src/shard/gate.rs", "tokio::spawn(f); tokio::time::sleep(d).await;", 2);
    finds(rule, "src/shard/gate.rs", "use tokio::{net::TcpStream, time::sleep, spawn};", 2);
    finds(rule, "src/raft/mod.rs", "std::thread::sleep(d); rt.spawn_blocking(f);", 2);
    finds(rule, "src/clock.rs", "let t = SystemTime::now();", 0);
    finds(rule, "src/http/serve.rs", "tokio::spawn(f);", 0);
    finds(rule, "src/shard/gate.rs", "use tokio::sync::mpsc; crate::runtime::spawn(f);", 0);
}

#[test]
fn impure_ledger_is_noticed() {
    let rule = impurities_of_the_ledger;
    finds(rule, "src/ledger/slot.rs", "use std::time::Duration;", 1);
    finds(rule, "src/ledger/slot.rs", "use std::{fmt, fs::File, sync::Arc, time};", 2);
    finds(rule, "src/ledger/slot.rs", "static A: std::sync::Mutex<u8> = f();", 1);
    finds(rule, "src/ledger/slot.rs", "use std::sync::Arc;", 0);
    finds(rule, "src/ledger/slot.rs", "async fn f(x: f64) { HashMap::new() }", 3);
    finds(rule, "src/ledger/slot.rs", "use std::collections::BTreeMap; // async f64", 0);
    finds(rule, "src/shard/gate.rs", "use std::time::Duration;", 0);
}

#[test]
fn unbounded_channel_is_noticed() {
    finds(unbounded_channels, "src/node.rs", "let (a, b) = mpsc::unbounded_channel();", 1);
    finds(unbounded_channels, "src/node.rs", "let (a, b) = std::sync::mpsc::channel();", 1);
    finds(unbounded_channels, "src/node.rs", "let (a, b) = mpsc::channel::<Vec<u8>>();", 1);
    finds(unbounded_channels, "src/node.rs", "mpsc::channel(8); oneshot::channel();", 0);
    finds(unbounded_channels, "src/node.rs", "mpsc::channel::<u8>(n()); fn channel() {}", 0);
}

#[test]
fn sleep_in_a_test_is_noticed() {
    finds(sleeps_in_tests, "tests/http_holds.rs", "std::thread::sleep(d);", 1);
    finds(sleeps_in_tests, "src/node.rs", "#[cfg(test)]\nmod tests { fn f() { sleep(d) } }", 1);
    finds(sleeps_in_tests, "src/node.rs", "fn f() { crate::runtime::sleep(d) }", 0);
    finds(sleeps_in_tests, "tests/simulation.rs", "runtime::sleep(d);", 0);
}

#[test]
fn place_on_one_machine_is_noticed() {
    let home = format!("/{}/ann/holdfast", "home");
    assert_eq!(paths_of_a_machine("README.md", &format!("see {home}")).len(), 1);
    assert_eq!(paths_of_a_machine("README.md", &format!("cd \"{home}\"\n{home}")).len(), 2);
    assert_eq!(paths_of_a_machine("README.md", &format!("a.example{home} and $HOME/x")).len(), 0);
}

#[test]
fn key_without_effect_is_noticed() {
    let toml = "# x = 1\n[http]\nlisten = 1\nadvertise = 1\nbatch_max = 1\nthreads = 0\n";
    let files = [
        Source::new("src/config/keys.rs", "fn f(c: &C) { c.batch_max }"),
        Source::new("src/node.rs", "fn f(c: &C) { c.http.listen; c.http.advertised() }"),
        Source::new("src/cli/mod.rs", "fn f(threads: u8) { threads }"),
    ];
    let faults = keys_without_effect(toml, &files, &[]);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(keys_without_effect(toml, &files, &["http.threads", "http.batch_max"]).len(), 0);
}

#[test]
fn table_of_cases_that_lies_is_noticed() {
    let table = "| 1 | L01 | a | `x #1` | planned: `tests/a.rs`, `tests/b.rs`, `tests/c.rs` |";
    let read = |path: &str| match path {
        "tests/a.rs" => Some("case L01".to_owned()),
        "tests/c.rs" => Some("case L02".to_owned()),
        _ => None,
    };
    let (marked, faults) = cases_marked(table, read);
    let right = "| 1 | L01 | a | `x #1` | `tests/a.rs`, planned: `tests/b.rs`, `tests/c.rs` |\n";
    assert_eq!(marked, right);
    assert_eq!(faults.len(), 1, "{faults:?}");
}
