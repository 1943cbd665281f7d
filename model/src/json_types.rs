//! Messages of serde_json in the terms of JSON, for people who do not write Rust.

/// How a message of serde names the type that it expected, and how JSON names it.
const TYPES: [(&str, &str); 15] = [
    ("f32", "a number"),
    ("f64", "a number"),
    ("i8", "a whole number"),
    ("i16", "a whole number"),
    ("i32", "a whole number"),
    ("i64", "a whole number"),
    ("u8", "a whole number that is not negative"),
    ("u16", "a whole number that is not negative"),
    ("u32", "a whole number that is not negative"),
    ("u64", "a whole number that is not negative"),
    ("usize", "a whole number that is not negative"),
    ("a sequence", "a list"),
    ("a map", "an object"),
    ("unit", "null"),
    ("any valid JSON value", "a value"),
];

/// Replaces Rust's name of the expected type at the end of a message of serde_json: `expected f64` becomes
/// `expected a number`. The position in the body stays.
pub fn with_json_types(message: &str) -> String {
    let Some((before, after)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let (name, position) = match after.find(" at line ") {
        Some(at) => after.split_at(at),
        None => (after, ""),
    };
    let known = TYPES.iter().find(|(rust, _)| *rust == name).map(|(_, json)| *json);
    let json = known.or_else(|| name.starts_with("struct ").then_some("an object")).unwrap_or(name);
    format!("{before}expected {json}{position}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_json() {
        let check = |json: &str, expect: &str| {
            let error = serde_json::from_str::<Vec<(f64, u32, Vec<u8>)>>(json).unwrap_err();
            assert_eq!(with_json_types(&error.to_string()), expect);
        };
        check("[[\"x\"]]", "invalid type: string \"x\", expected a number at line 1 column 5");
        check(
            "[[1, -1]]",
            "invalid value: integer `-1`, expected a whole number that is not negative at line 1 column 7",
        );
        check("[[1, 1, 7]]", "invalid type: integer `7`, expected a list at line 1 column 9");
        check("[", "EOF while parsing a list at line 1 column 1");
        assert_eq!(
            with_json_types("invalid type: null, expected struct Options"),
            "invalid type: null, expected an object"
        );
    }
}
