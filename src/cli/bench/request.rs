//! The bench's requests, written with their heads prepared, and the little that it reads of the
//! answers' bodies.

use std::collections::BTreeMap;
use std::io::Write;

use super::tally::KeyRange;
use crate::client::path_segment;

/// The length of a placement's body without its two numbers.
const PLACE_BODY_BYTES: usize = r#"{"quantity":1,"buyer":"b","ttl_ms":}"#.len();

/// Everything that is the same in all requests of a run.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    /// The item as a JSON string, quotes and all.
    item_json: String,
    place_head: String,
    batch_head: String,
    change_tail: String,
    key_prefix: String,
    buyers: u64,
    batch: u64,
    ttl_ms: u64,
    crowd: Crowd,
}

/// How the buyers are spread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Crowd {
    /// Regions that they belong to in turn; none is named with fewer than two.
    pub(super) regions: u64,
    /// Percent of the placements that one buyer makes.
    pub(super) skew: u64,
}

impl Requests {
    /// Prepares the heads. `buyers` and `batch` are at least 1.
    pub(super) fn new(
        item: &str,
        tenant: Option<&str>,
        buyers: u64,
        batch: u64,
        ttl_ms: u64,
    ) -> Requests {
        let tenant = tenant.map(|name| format!("holdfast-tenant: {name}\r\n")).unwrap_or_default();
        let shared = format!(
            "host: holdfast\r\ncontent-type: application/json\r\nprefer: redirect\r\n\
             holdfast-deadline-ms: 4000\r\n{tenant}"
        );
        let path = path_segment(item);
        Requests {
            item_json: serde_json::Value::from(item).to_string(),
            place_head: format!("POST /v1/items/{path}/holds HTTP/1.1\r\n{shared}"),
            batch_head: format!("POST /v1/holds:batch HTTP/1.1\r\n{shared}"),
            change_tail: format!(" HTTP/1.1\r\n{shared}"),
            key_prefix: format!("bench-{:08x}", rand::random::<u32>()),
            buyers: buyers.max(1),
            batch: batch.max(1),
            ttl_ms,
            crowd: Crowd::default(),
        }
    }

    /// Spreads the buyers, and asks any node instead of being sent to a leader.
    pub(super) fn spread(mut self, crowd: Crowd) -> Requests {
        self.crowd = crowd;
        for head in [&mut self.place_head, &mut self.batch_head, &mut self.change_tail] {
            *head = head.replace("prefer: redirect\r\n", "");
        }
        self
    }

    /// How many operations a batch has.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// The key with this number.
    pub(super) fn key(&self, number: u64) -> String {
        format!("{}-{number}", self.key_prefix)
    }

    /// The buyer of the operation with this number.
    pub(super) fn buyer(&self, number: u64) -> String {
        format!("b{}", self.buyer_number(number))
    }

    fn buyer_number(&self, number: u64) -> u64 {
        if number % 100 < self.crowd.skew { 0 } else { number % self.buyers }
    }

    /// The region of the operation with this number, as its buyer has it.
    pub(super) fn region(&self, number: u64) -> Option<String> {
        let regions = self.crowd.regions;
        (regions > 1).then(|| format!("r{}", self.buyer_number(number) % regions))
    }

    /// Of the regions, the one that the operation with this number belongs to.
    pub(super) fn region_at(&self, number: u64) -> usize {
        let regions = self.crowd.regions.max(1);
        usize::try_from(self.buyer_number(number) % regions).unwrap_or(0)
    }

    /// The member that names the region, or nothing.
    fn region_member(&self, number: u64) -> String {
        let region = self.region(number);
        region.map(|region| format!(",\"region\":\"{region}\"")).unwrap_or_default()
    }

    /// Writes a placement of one unit.
    pub(super) fn place(&self, number: u64, out: &mut Vec<u8>) {
        let (buyer, region) = (self.buyer_number(number), self.region_member(number));
        let length = PLACE_BODY_BYTES + digits(buyer) + digits(self.ttl_ms) + region.len();
        out.clear();
        write!(
            out,
            "{}idempotency-key: {}-{number}\r\ncontent-length: {length}\r\n\r\n\
             {{\"quantity\":1,\"buyer\":\"b{buyer}\",\"ttl_ms\":{}{region}}}",
            self.place_head, self.key_prefix, self.ttl_ms
        )
        .expect("a Vec takes every write");
    }

    /// Writes a batch of placements of one unit, with the keys `first` … .
    pub(super) fn place_batch(&self, first: u64, out: &mut Vec<u8>) {
        /// Room for the length, written last, in front of the body.
        const LENGTH_DIGITS: usize = 10;
        out.clear();
        write!(out, "{}content-length: ", self.batch_head).expect("a Vec takes every write");
        let length_at = out.len();
        out.extend_from_slice(&[b'0'; LENGTH_DIGITS]);
        out.extend_from_slice(b"\r\n\r\n");
        let body_at = out.len();
        out.extend_from_slice(br#"{"operations":["#);
        for number in first..first + self.batch {
            if number > first {
                out.push(b',');
            }
            write!(
                out,
                "{{\"op\":\"place\",\"key\":\"{}-{number}\",\"item\":{},\"quantity\":1,\
                 \"buyer\":\"b{}\",\"ttl_ms\":{}{}}}",
                self.key_prefix,
                self.item_json,
                self.buyer_number(number),
                self.ttl_ms,
                self.region_member(number)
            )
            .expect("a Vec takes every write");
        }
        out.extend_from_slice(b"]}");
        let length = format!("{:0LENGTH_DIGITS$}", out.len() - body_at);
        out[length_at..length_at + LENGTH_DIGITS].copy_from_slice(length.as_bytes());
    }

    /// Writes a change of a hold.
    pub(super) fn change(&self, id: &str, verb: &str, number: u64, out: &mut Vec<u8>) {
        out.clear();
        write!(
            out,
            "POST /v1/holds/{id}/{verb}{}idempotency-key: {}-{number}\r\n\
             content-length: 2\r\n\r\n{{}}",
            self.change_tail, self.key_prefix
        )
        .expect("a Vec takes every write");
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// The first string member of this name in a flat JSON text.
pub(super) fn field<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = body;
    loop {
        let at = rest.find(name)?;
        let behind = &rest[at + name.len()..];
        if rest[..at].ends_with('"')
            && let Some(value) = behind.strip_prefix("\":\"")
        {
            return value.split('"').next();
        }
        rest = behind;
    }
}

/// The slug of a problem, or nothing.
pub(super) fn slug_of(body: &str) -> &str {
    field(body, "type").and_then(|uri| uri.rsplit_once('/')).map_or("", |(_, slug)| slug)
}

/// What the results of a batch came to.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) count: u64,
    pub(super) granted: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) unknown: Vec<KeyRange>,
    pub(super) ids: Vec<String>,
}

impl Results {
    pub(super) fn unknown_count(&self) -> u64 {
        self.unknown.iter().map(|range| range.count).sum()
    }
}

/// Reads the dense results of a batch of placements whose first key is `first`.
///
/// A result looks like `{"status":201,"hold":{…}}` or `{"status":409,"problem":{…,"status":409}}`:
/// only a `status` that opens an object is a result's own.
pub(super) fn results_of(body: &str, first: u64, keep_ids: bool) -> Results {
    const MARK: &str = "{\"status\":";
    let mut results = Results::default();
    let mut rest = body;
    while let Some(at) = rest.find(MARK) {
        rest = &rest[at + MARK.len()..];
        let status: u16 = rest.get(..3).and_then(|text| text.parse().ok()).unwrap_or(0);
        let number = first + results.count;
        results.count += 1;
        match status {
            200 | 201 => {
                results.granted += 1;
                if keep_ids && let Some(id) = field(rest, "id") {
                    results.ids.push(id.to_owned());
                }
            }
            503 | 429 | 400..=428 => {
                let slug = slug_of(&rest[..rest.find(MARK).unwrap_or(rest.len())]);
                *results.refused.entry(slug.to_owned()).or_default() += 1;
            }
            _ => results.unknown.push(KeyRange { first: number, count: 1 }),
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(batch: u64) -> Requests {
        Requests::new("it \"em", Some("shop"), 1_000, batch, 60_000)
    }

    fn split(bytes: &[u8]) -> (String, serde_json::Value) {
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let told = field_of_head(head, "content-length").parse::<usize>().expect("a number");
        assert_eq!(told, body.len(), "{head}");
        (head.to_owned(), serde_json::from_str(body).expect("JSON"))
    }

    fn field_of_head<'a>(head: &'a str, name: &str) -> &'a str {
        let line = head.lines().find(|line| line.starts_with(name)).expect("the header is there");
        line.split_once(": ").expect("a value").1
    }

    #[test]
    fn a_placement_tells_its_length_its_key_and_its_buyer() {
        for number in [0, 9, 10, 99_999] {
            let mut out = Vec::new();
            requests(1).place(number, &mut out);
            let (head, body) = split(&out);
            assert!(head.starts_with("POST /v1/items/it%20%22em/holds HTTP/1.1\r\n"), "{head}");
            assert!(field_of_head(&head, "idempotency-key").ends_with(&format!("-{number}")));
            assert_eq!(body["buyer"], requests(1).buyer(number));
            assert_eq!(body["quantity"], 1);
        }
    }

    #[test]
    fn spread_buyers_name_their_regions_and_ask_any_node() {
        let spread = requests(2).spread(Crowd { regions: 3, skew: 50 });
        let mut out = Vec::new();
        for number in [7, 70, 171] {
            spread.place(number, &mut out);
            let (head, body) = split(&out);
            assert!(!head.contains("redirect"), "{head}");
            assert_eq!(body["buyer"], spread.buyer(number));
            assert_eq!(
                Some(body["region"].as_str().expect("a region").to_owned()),
                spread.region(number)
            );
        }
        assert_eq!(spread.buyer(49), "b0", "half of them are one buyer's");
        spread.place_batch(70, &mut out);
        let (_, body) = split(&out);
        assert_eq!(body["operations"][1]["region"], "r2");
    }

    #[test]
    fn a_batch_has_one_key_an_operation() {
        let requests = requests(3);
        let mut out = Vec::new();
        requests.place_batch(7, &mut out);
        let (_, body) = split(&out);
        let keys: Vec<_> = (0..3).map(|n| body["operations"][n]["key"].clone()).collect();
        assert_eq!(keys, [requests.key(7), requests.key(8), requests.key(9)]);
        assert_eq!(body["operations"][0]["item"], "it \"em");
    }

    #[test]
    fn results_are_counted_and_the_problems_own_status_is_not() {
        let body = r#"{"results":[{"status":201,"hold":{"id":"hld_1","state":"held"}},
            {"status":409,"problem":{"type":"/problems/sold-out","status":409,"id":"x"}},
            {"status":504,"problem":{"type":"/problems/outcome-unknown","status":504}},
            {"status":201,"hold":{"id":"hld_2"}},
            {"status":503,"problem":{"type":"/problems/item-paused"}}]}"#;
        let results = results_of(body, 40, true);
        assert_eq!((results.count, results.granted), (5, 2));
        assert_eq!(results.refused["sold-out"], 1);
        assert_eq!(results.refused["item-paused"], 1);
        assert_eq!(results.unknown, [KeyRange { first: 42, count: 1 }]);
        assert_eq!(results.ids, ["hld_1", "hld_2"]);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let body = r#"{"grid":"no","id":"yes"}"#;
        assert_eq!(field(body, "id"), Some("yes"));
        assert_eq!(field(body, "none"), None);
        assert_eq!(slug_of(r#"{"type":"/problems/sold-out"}"#), "sold-out");
        assert_eq!(slug_of("<html>"), "");
    }
}
