//! The configuration: precedence, bounds, unknown keys, and the files that ship with it.
//!
//! `make generated` writes `config/holdfast.toml` anew.

use std::path::Path;

use holdfast::config::{Config, ConfigError, Fault, LogFormat, LogLevel, Origin};

type Pairs = Vec<(String, String)>;

fn pairs(of: &[(&str, &str)]) -> Pairs {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn from_file(text: &str) -> Result<Config, ConfigError> {
    Config::from_parts(Some(text), Pairs::new(), Pairs::new())
}

fn from_env(of: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_parts(None, pairs(of), Pairs::new())
}

fn from_flags(of: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_parts(None, Pairs::new(), pairs(of))
}

fn refusal(result: Result<Config, ConfigError>) -> String {
    result.expect_err("this configuration must be refused").to_string()
}

fn shipped(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The keys of the documented file: (section, key, the value as written, its comment).
fn documented_keys() -> Vec<(String, String, String, String)> {
    let mut keys = Vec::new();
    let (mut section, mut comment) = (String::new(), String::new());
    for line in Config::default().to_toml_documented().lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some(words) = line.strip_prefix('#') {
            comment += words;
            comment.push('\n');
            continue;
        } else if let Some((name, value)) = line.split_once(" = ") {
            keys.push((section.clone(), name.to_owned(), value.to_owned(), comment.clone()));
        }
        comment.clear();
    }
    keys
}

/// The bounds of a whole-number key, read from its comment: `a whole number, 1 … 64`.
fn bounds(comment: &str) -> Option<(u64, u64)> {
    let rule = comment.split_once("a whole number, ")?.1;
    let (min, rest) = rule.split_once(" … ")?;
    let max: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '_').collect();
    let number = |text: &str| text.replace('_', "").parse().expect("a bound is a number");
    Some((number(min), number(&max)))
}

#[test]
fn defaults_satisfy_every_rule() {
    Config::default().validate().expect("the defaults are valid");
    assert_eq!(from_file("").expect("an empty file changes nothing"), Config::default());
    assert!(Config::default().http.thread_count() >= 1);
}

#[test]
fn test_configuration_satisfies_every_rule() {
    let config = Config::for_test("some/dir");
    config.validate().expect("it is valid");
    assert_eq!(config.node.data_dir, Path::new("some/dir"));
    assert_eq!((config.http.listen.port(), config.peer.listen.port()), (0, 0));
    assert_eq!(config.http.thread_count(), 1);
}

#[test]
fn shipped_file_is_equal_to_the_code() {
    let made = Config::default().to_toml_documented();
    if std::env::var_os("REGENERATE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/holdfast.toml");
        std::fs::write(path, &made).expect("the file can be written");
    }
    let file = shipped("config/holdfast.toml");
    assert!(file == made, "config/holdfast.toml differs from the code; run `make generated`");
    assert_eq!(from_file(&file).expect("it parses"), Config::default());
}

#[test]
fn documented_file_reads_back_as_the_configuration_it_was_made_from() {
    let mut config = Config::for_test("with \"quotes\" and \\ in it");
    config.node.name = Some("n1".to_owned());
    config.peer.advertise = Some("n1.example:7201".to_owned());
    config.log_output.format = LogFormat::Json;
    config.batch.queue_max = 1_234_567;
    let text = config.to_toml_documented();
    assert_eq!(from_file(&text).expect("it parses"), config);
}

#[test]
fn every_key_is_documented_with_its_default_and_its_variable() {
    let keys = documented_keys();
    assert!(keys.len() > 50, "only {} keys were found", keys.len());
    for (section, name, value, comment) in keys {
        let variable = format!("HOLDFAST_{section}__{name}").to_uppercase();
        assert!(comment.contains(&format!("default {value}")), "{section}.{name}: no default");
        assert!(comment.contains(&variable), "{section}.{name}: no {variable}");
        assert!(comment.lines().count() > 2, "{section}.{name}: no words on what it is for");
    }
}

#[test]
fn every_key_of_the_file_takes_its_value_from_each_source() {
    for (section, name, value, _) in documented_keys() {
        let text = value.trim_matches('"');
        let path = format!("{section}.{name}");
        let long = format!("HOLDFAST_{section}__{name}").to_uppercase();
        let short = format!("HOLDFAST_{section}_{name}").to_uppercase();
        for variable in [&long, &short] {
            let config = from_env(&[(variable.as_str(), text)]);
            assert_eq!(config.unwrap_or_else(|e| panic!("{variable}: {e}")), Config::default());
        }
        let config = from_flags(&[(path.as_str(), text)]);
        assert_eq!(config.unwrap_or_else(|e| panic!("{path}: {e}")), Config::default());
    }
}

#[test]
fn names_of_variables_are_unambiguous() {
    let mut names = std::collections::BTreeSet::new();
    for (section, name, _, _) in documented_keys() {
        let short = format!("{section}_{name}");
        assert!(names.insert(short.clone()), "{short} names two keys");
    }
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let file = "[cluster]\nshards = 5\nslots = 5\nsweep_max = 5\n";
    let env = pairs(&[("HOLDFAST_CLUSTER__SLOTS", "6"), ("HOLDFAST_CLUSTER_SWEEP_MAX", "6")]);
    let flags = pairs(&[("cluster.sweep_max", "7")]);
    let config = Config::from_parts(Some(file), env, flags).expect("it is valid");
    let cluster = &config.cluster;
    assert_eq!((cluster.shards, cluster.slots, cluster.sweep_max), (5, 6, 7));
    assert_eq!(cluster.receipt_retention_ms, 86_400_000, "the default stays");
}

#[test]
fn a_value_at_each_bound_is_taken_and_one_beyond_is_refused() {
    let mut checked = 0;
    for (section, name, _, comment) in documented_keys() {
        let Some((min, max)) = bounds(&comment) else { continue };
        checked += 1;
        let path = format!("{section}.{name}");
        // At a bound only a rule between keys may refuse it: never the key's own.
        for inside in [min, max] {
            if let Err(error) = from_flags(&[(path.as_str(), &inside.to_string())]) {
                let own = error.faults.iter().any(|f| !matches!(f, Fault::Contradiction { .. }));
                assert!(!own, "{path} = {inside}: {error}");
            }
        }
        for outside in [min.checked_sub(1), Some(max + 1), Some(u64::MAX)].into_iter().flatten() {
            let words = refusal(from_flags(&[(path.as_str(), &outside.to_string())]));
            assert!(words.contains(&path) && words.contains("a whole number"), "{words}");
        }
        let words = refusal(from_file(&format!("[{section}]\n{name} = -1\n")));
        assert!(words.contains(&format!("`{path}` to -1")), "{words}");
    }
    assert!(checked > 40, "only {checked} keys have bounds");
}

#[test]
fn number_is_refused_in_every_other_type_and_spelling() {
    for value in ["\"4\"", "4.0", "true", "[4]", "{ a = 4 }", "1979-05-27", "1e3", "nan"] {
        let words = refusal(from_file(&format!("[cluster]\nshards = {value}\n")));
        assert!(words.contains("a whole number, 1 … 64"), "{value}: {words}");
    }
    for text in ["", " ", "four", "4.0", "-4", "+4", "0x4", "1e1", "_4", "18446744073709551616"] {
        let words = refusal(from_env(&[("HOLDFAST_CLUSTER__SHARDS", text)]));
        assert!(words.contains("a whole number, 1 … 64"), "{text}: {words}");
    }
    let config = from_env(&[("HOLDFAST_BATCH__ENTRY_BYTES_MAX", "65_536")]).expect("as in TOML");
    assert_eq!(config.batch.entry_bytes_max, 65_536);
}

#[test]
fn text_is_refused_where_it_breaks_its_rule() {
    let long = "r".repeat(129);
    for (key, bad, rule) in [
        ("node.region", "", "1–128 printable"),
        ("node.region", "a/b", "1–128 printable"),
        ("node.region", "a b", "1–128 printable"),
        ("node.region", "zürich", "1–128 printable"),
        ("node.region", long.as_str(), "1–128 printable"),
        ("node.name", "a/b", "or empty"),
        ("node.data_dir", "", "a path"),
        ("node.data_dir", "a\0b", "a path"),
        ("http.listen", "", "an IP address and a port"),
        ("http.listen", "7101", "an IP address and a port"),
        ("http.listen", "localhost:7101", "an IP address and a port"),
        ("http.listen", "127.0.0.1:70000", "an IP address and a port"),
        ("http.advertise", "n1", "a host and a port"),
        ("http.advertise", "n1:0", "a host and a port"),
        ("http.advertise", "n1:+1", "a host and a port"),
        ("http.advertise", "http://n1:7101", "a host and a port"),
        ("log_output.level", "loud", "one of error, warn, info, debug, trace"),
        ("log_output.format", "JSON", "one of text, json"),
    ] {
        let words = refusal(from_flags(&[(key, bad)]));
        assert!(words.contains(rule) && words.contains(key), "{key} = {bad:?}: {words}");
    }
    let words = refusal(from_file("[node]\nregion = 7\n"));
    assert!(words.contains("`node.region` to 7"), "{words}");
}

#[test]
fn text_is_taken_where_it_keeps_its_rule() {
    let config = from_flags(&[
        ("http.listen", "[::1]:80"),
        ("http.advertise", "[::1]:8080"),
        ("peer.listen", "0.0.0.0:7201"),
        ("peer.advertise", "n-1.example.com:7201"),
        ("log_output.level", "debug"),
    ])
    .expect("it is valid");
    assert_eq!(config.http.advertised(), "[::1]:8080");
    assert_eq!(config.peer.advertised(), "n-1.example.com:7201");
    assert_eq!(config.log_output.level, LogLevel::Debug);
    assert_eq!(Config::default().http.advertised(), "127.0.0.1:7101");
}

#[test]
fn unknown_key_is_refused_with_the_nearest_known_one() {
    for (result, wrote, nearest) in [
        (from_file("[htpp]\nlisten = \"x\""), "htpp", "`http`"),
        (from_file("shards = 4"), "shards", "the nearest is"),
        (from_file("[http]\nbody_byte_max = 1"), "http.body_byte_max", "`http.body_bytes_max`"),
        (from_file("[cluster]\nshard = 1"), "cluster.shard", "`cluster.shards`"),
        (from_file("[raft]\nlease_ms = 400"), "raft.lease_ms", "the nearest is"),
        (from_flags(&[("http.lisen", "x")]), "http.lisen", "`http.listen`"),
        (
            from_env(&[("HOLDFAST_HTTP__LISTN", "x")]),
            "HOLDFAST_HTTP__LISTN",
            "`HOLDFAST_HTTP__LISTEN`",
        ),
        (from_env(&[("HOLDFAST_", "x")]), "`HOLDFAST_`", "the nearest is"),
    ] {
        let words = refusal(result);
        assert!(words.contains(wrote) && words.contains(nearest), "{words}");
    }
}

#[test]
fn variables_of_others_are_passed_over() {
    let config = from_env(&[
        ("PATH", "/bin"),
        ("holdfast_http__listen", "x"),
        ("HOLDFAST_URL", "http://127.0.0.1:7101"),
        ("HOLDFAST_CONFIG", "config/holdfast.toml"),
        ("HOLDFAST_SERVICE_HOST", "10.0.0.1"),
        ("HOLDFAST_SERVICE_PORT_HTTP", "7101"),
        ("HOLDFAST_PORT", "tcp://10.0.0.1:7101"),
        ("HOLDFAST_PORT_7101_TCP_ADDR", "10.0.0.1"),
    ]);
    assert_eq!(config.expect("none of them is a key of ours"), Config::default());
}

#[test]
fn key_named_twice_by_one_source_is_refused() {
    let both = [("HOLDFAST_CLUSTER__SHARDS", "3"), ("HOLDFAST_CLUSTER_SHARDS", "3")];
    assert!(refusal(from_env(&both)).contains("`cluster.shards` twice"));
    assert!(refusal(from_file("[cluster]\nshards = 3\nshards = 3\n")).contains("not valid TOML"));
}

#[test]
fn all_faults_are_told_at_once_with_their_origin() {
    let error = Config::from_parts(
        Some("[cluster]\nshards = 0\ncolour = 1\n"),
        pairs(&[("HOLDFAST_LOG__HUNG_MS", "no")]),
        pairs(&[("peer.listen", "no")]),
    )
    .expect_err("it has four faults");
    assert_eq!(error.faults.len(), 4, "{error}");
    for origin in [Origin::File, Origin::Environment, Origin::Flag] {
        assert!(error.to_string().contains(&origin.to_string()), "{error}");
    }
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    for (flags, rule) in [
        (vec![("cluster.sold_retention_ms", "60000")], "at least cluster.receipt_retention_ms"),
        (vec![("raft.pause_after_ms", "100")], "more than two heartbeats"),
        (vec![("raft.election_min_ms", "99")], "at least two heartbeats"),
        (vec![("raft.election_min_ms", "400")], "less than raft.election_max_ms"),
        (vec![("raft.pause_after_ms", "400")], "shorter than the lease"),
        (vec![("peer.append_bytes_max", "65535")], "fit in peer.append_bytes_max"),
        (vec![("peer.append_bytes_max", "4194304")], "less than peer.frame_bytes_max"),
        (vec![("peer.chunk_bytes_max", "4194304")], "less than peer.frame_bytes_max"),
        (vec![("http.body_bytes_max", "4194304")], "forwarded in one frame"),
        (vec![("peer.queue_bytes_max", "1048576")], "fit in peer.queue_bytes_max"),
        (vec![("log.segment_bytes", "1048576")], "four of the largest appends"),
        (vec![("log.hung_ms", "10000")], "less than log.dead_ms"),
        (vec![("peer.listen", "127.0.0.1:7101")], "must differ"),
        (vec![("peer.listen", "0.0.0.0:7201")], "peer.advertise must be set"),
        (vec![("peer.listen", "[::]:7201")], "peer.advertise must be set"),
        (vec![("http.listen", "0.0.0.0:7101")], "http.advertise must be set"),
    ] {
        let words = refusal(from_flags(&flags));
        assert!(words.contains(rule), "{flags:?}: {words}");
    }
}

#[test]
fn configuration_changed_by_hand_is_checked_too() {
    let mut config = Config::default();
    config.cluster.shards = 65;
    config.node.region = String::new();
    config.raft.pause_after_ms = 1_000;
    let error = config.validate().expect_err("three rules are broken");
    assert_eq!(error.faults.len(), 3, "{error}");
}

#[test]
fn missing_file_is_named() {
    let missing = Path::new("no/such/file.toml");
    let words = refusal(Config::load(Some(missing), Pairs::new(), Pairs::new()));
    assert!(words.contains("cannot read no/such/file.toml"), "{words}");
    assert_eq!(
        Config::load(None, Pairs::new(), Pairs::new()).expect("no file is needed"),
        Config::default()
    );
}

#[test]
fn shipped_cluster_files_make_three_nodes_that_do_not_collide() {
    let mut taken = std::collections::BTreeSet::new();
    for n in 1..=3_u16 {
        let config = from_file(&shipped(&format!("config/cluster/n{n}.toml"))).expect("it parses");
        assert_eq!(config.node.name, Some(format!("n{n}")));
        assert_eq!(config.node.data_dir, Path::new("data").join(format!("n{n}")));
        assert_eq!(config.http.listen.to_string(), format!("127.0.0.1:{}", 7100 + n));
        assert_eq!(config.peer.listen.to_string(), format!("127.0.0.1:{}", 7200 + n));
        assert!(taken.insert(config.node.data_dir.clone()), "two nodes share a directory");
        assert_eq!(config.cluster, Config::default().cluster, "cluster-wide keys are shared");
        assert_eq!(config.raft, Config::default().raft, "the timers are shared");
    }
}

#[test]
fn finish_lane_is_a_part_of_the_queue() {
    let batch = Config::default().batch;
    assert_eq!(batch.finish_lane(), batch.queue_max / 4);
    assert!(batch.finish_lane() > 0 && batch.finish_lane() < batch.queue_max);
}

#[test]
fn environment_of_the_process_holds_only_what_is_ours() {
    // Set by cargo for every test, and not ours.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let environment = holdfast::config::environment();
    assert!(environment.iter().all(|(name, _)| name.starts_with("HOLDFAST_")));
}
