//! What an operator may have written: the configuration.

use holdfast::config::Config;
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::campaign::{bend, bounded, campaign, place};

const WORDS: [&str; 16] = [
    "\"\"",
    "-1",
    "0",
    "18446744073709551616",
    "1e400",
    "nan",
    "[]",
    "{}",
    "true",
    "'''",
    "[[x]]",
    "127.0.0.1:99999",
    "\u{0}",
    "é",
    "2026-01-01",
    "\"a\\u0000b\"",
];

fn text_of(rng: &mut SmallRng, whole: &str) -> String {
    if rng.random_bool(0.5) {
        // Another value behind a key.
        let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
        for _ in 0..rng.random_range(1..5) {
            let at = place(rng, lines.len());
            let word = WORDS[place(rng, WORDS.len())];
            let key =
                lines[at].trim_start_matches("# ").split('=').next().unwrap_or("x").to_owned();
            lines[at] = format!("{key} = {word}");
        }
        return lines.join("\n");
    }
    let mut bytes = whole.as_bytes().to_vec();
    bend(rng, &mut bytes, &[]);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A configuration is valid, or every fault is told; a valid one can be written and read again.
#[test]
fn configurations_are_valid_or_their_faults_are_told() {
    let whole = Config::default().to_toml_documented();
    let keys: Vec<String> = whole
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").split_once(" = "))
        .map(|(key, _)| key.to_owned())
        .collect();
    campaign("configurations", |rng| {
        let text = text_of(rng, &whole);
        let words = |rng: &mut SmallRng| WORDS[place(rng, WORDS.len())].to_owned();
        let key = keys[place(rng, keys.len())].to_uppercase();
        let env = [(format!("HOLDFAST_RAFT__{key}"), words(rng))];
        let env = env.into_iter().filter(|_| rng.random_bool(0.2)).collect::<Vec<_>>();
        let flags = [(format!("http.{}", keys[place(rng, keys.len())]), words(rng))];
        let flags = flags.into_iter().filter(|_| rng.random_bool(0.2)).collect::<Vec<_>>();
        let bound = text.len() * 256 + (8 << 20);
        let made = bounded(bound, || Config::from_parts(Some(&text), env, flags));
        match made {
            Ok(config) => {
                config.validate().expect("what was read is valid");
                let again = Config::from_parts(Some(&config.to_toml_documented()), [], []);
                assert_eq!(again.expect("what was written is valid"), config);
            }
            Err(error) => assert!(error.to_string().len() > 40, "{error}"),
        }
    });
}
