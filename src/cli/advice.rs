//! A refusal in the words of the command line: the flags and verbs that help, where the cluster's
//! own words name paths and headers.

use serde_json::Value;

use crate::client::Problem;

/// Says what was refused and what helps.
pub(super) fn spoken(problem: &Problem) -> String {
    let words = in_own_words(problem).unwrap_or_else(|| problem.detail.clone());
    let words = words.trim_end();
    if words.is_empty() { problem.to_string() } else { format!("{}: {words}", problem.slug) }
}

/// The words for problems whose detail speaks of HTTP.
fn in_own_words(problem: &Problem) -> Option<String> {
    let number = |name: &str| problem.members.get(name).and_then(Value::as_u64);
    let text = |name: &str| problem.members.get(name).and_then(Value::as_str);
    let words = match problem.slug.as_str() {
        "use-adjustments" => format!(
            "the item exists, and its total is {}. Change the total with `holdfast item adjust`, \
             and the rules with `holdfast item set`.",
            number("total")?
        ),
        "hold-confirmed" => "the hold is sold. `holdfast hold return` brings its units back to \
             stock."
            .to_owned(),
        "hold-expired" => format!(
            "the hold expired at {}. Undo the payment, or sell it all the same, while units are \
             left, with `holdfast hold confirm --reacquire`.",
            text("expired_at")?
        ),
        "revision-mismatch" => format!(
            "the revision is {} now. Look at the item again (`holdfast item get`) and decide anew.",
            number("revision")?
        ),
        "precondition-required" => "--set-total needs --if-match with the revision that you read \
             (`holdfast item get`)."
            .to_owned(),
        "item-paused" if text("reason") == Some("operator") => "an operator paused the item; it \
             grants again after `holdfast item resume`."
            .to_owned(),
        "item-paused" if text("reason") == Some("invariant") => "a law was found broken; the item \
             stays paused until `holdfast item resume`. Look at `holdfast audit` first."
            .to_owned(),
        "idempotency-key-reused" => format!(
            "the key was used before with another `{}`. Say the same as then, or leave --key out.",
            text("field")?
        ),
        _ => return None,
    };
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(slug: &str, mut members: Value) -> Problem {
        let members = members.as_object_mut().expect("an object");
        members.insert("type".into(), json!(format!("/problems/{slug}")));
        members.insert("detail".into(), json!("POST to …/return"));
        Problem::from_members(409, members.clone(), None)
    }

    #[test]
    fn a_refusal_names_verbs_and_flags_where_the_api_names_paths() {
        let words = spoken(&problem("hold-confirmed", json!({})));
        assert!(words.contains("hold return") && !words.contains("POST"), "{words}");
        let words = spoken(&problem("use-adjustments", json!({"total": 7})));
        assert!(words.contains("7") && words.contains("item adjust"), "{words}");
        let words = spoken(&problem("hold-expired", json!({"expired_at": "then"})));
        assert!(words.contains("--reacquire") && words.contains("then"), "{words}");
    }

    #[test]
    fn a_problem_without_its_figures_keeps_the_words_of_the_cluster() {
        let words = spoken(&problem("use-adjustments", json!({})));
        assert_eq!(words, "use-adjustments: POST to …/return");
    }
}
