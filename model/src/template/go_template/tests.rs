//! The expected texts are what Go's own text/template (1.26) prints for the same template and data.

use serde_json::json;

use super::limits::MAX_OUTPUT_BYTES;
use super::*;

fn run(source: &str, data: &serde_json::Value) -> Result<String, String> {
    let template = Template::parse(source).map_err(|error| error.to_string())?;
    let dates = Dates { today: "2026-11-22".into(), yesterday: "2026-11-21".into() };
    template.execute(&Value::from_json(data), &dates).map_err(|error| error.to_string())
}

fn data() -> serde_json::Value {
    json!({
        "a": "x", "n": 3, "f": 2.5, "big": 1_000_000, "small": 0.00001, "huge": 1e21, "t": true, "empty": [],
        "s": "<b>&\"'\n", "list": ["p", "q", "r"], "map": {"k": "v", "b": 2, "a": null},
        "turns": [{"r": "user", "c": "hi"}, {"r": "assistant", "c": ""}],
    })
}

fn check(source: &str, expect: &str) {
    assert_eq!(run(source, &data()).as_deref(), Ok(expect), "{source}");
}

#[test]
fn values_and_their_text() {
    check("{{.a}}|{{ .none }}|{{ print .none }}", "x|<no value>|<nil>");
    check("{{ .n }} {{ .f }} {{ .big }} {{ .small }} {{ .huge }} {{ .t }}", "3 2.5 1e+06 1e-05 1e+21 true");
    check("{{ .list }} {{ .map }} {{ .empty }}", "[p q r] map[a:<nil> b:2 k:v] []");
    check("{{ json .map }} {{ json .s }}", r#"{"a":null,"b":2,"k":"v"} "\u003cb\u003e\u0026\"'\n""#);
    check("{{ json .f }} {{ json .small }} {{ json .huge }} {{ json .none }}", "2.5 0.00001 1e+21 null");
    check(r#"{{ "a\tb \u00e9 \x41" }}{{ `raw \n` }}"#, "a\tb é Araw \\n");
    check(
        "{{ 'a' }} {{ 0x1F }} {{ 1e3 }} {{ 1.5 }} {{ 010 }} {{ -4 }} {{ +5 }} {{ .5 }}",
        "97 31 1000 1.5 8 -4 5 0.5",
    );
}

#[test]
fn text_around_actions() {
    check("  {{- .a -}}  \n b", "xb");
    check("a {{-3}} b", "a -3 b");
    check("{{/* c */}}x{{- /* c */ -}}  y", "xy");
    check("{{ .a }}}}{{ \"}}\" }}", "x}}}}");
    check("{{\n.a\n}}", "x");
}

#[test]
fn control() {
    check("{{ if .empty }}yes{{ else if .n }}n{{ else }}no{{ end }}", "n");
    check("{{ with .none }}x{{ else with .map }}{{ .b }}{{ end }}", "2");
    check("{{ range $i, $x := .list }}{{ if $i }}, {{ end }}{{ $i }}={{ $x }}{{ end }}", "0=p, 1=q, 2=r");
    check("{{ range $k, $v := .map }}{{ $k }}:{{ $v }};{{ end }}", "a:<no value>;b:2;k:v;");
    check("{{ range .list }}{{ if eq . \"q\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "pr");
    check("{{ range .list }}{{ if eq . \"q\" }}{{ break }}{{ end }}{{ . }}{{ end }}", "p");
    check("{{ range 3 }}{{ . }}{{ end }}{{ range .empty }}x{{ else }}none{{ end }}", "012none");
    check("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2");
    check("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", "1");
    check("{{ range .turns }}{{ $.a }}{{ with .c }}{{ . }}{{ else }}-{{ end }}{{ end }}", "xhix-");
    check(
        "{{ define \"m\" }}<{{ . }}>{{ end }}{{ template \"m\" .a }}{{ template \"m\" }}",
        "<x><<no value>>",
    );
    check("{{ block \"b\" .n }}({{ . }}){{ end }}", "(3)");
}

#[test]
fn functions() {
    check(
        "{{ eq .a \"y\" \"x\" }} {{ ne .a \"x\" }} {{ eq .none nil }} {{ eq .n 3.0 }}",
        "true false true true",
    );
    check(
        "{{ lt 1 2 }} {{ le 2 2 }} {{ gt 1 2 }} {{ ge 2 2 }} {{ lt \"a\" \"b\" }}",
        "true true false true true",
    );
    check("{{ and .a .n }} {{ and .none .n }} {{ or .none .n }} {{ or .none .empty }}", "3 <no value> 3 []");
    check("{{ len .list }} {{ len .a }} {{ len .map }}", "3 1 3");
    check("{{ index .list 1 }} {{ index .map \"zz\" }} {{ index .turns 0 \"c\" }}", "q <no value> hi");
    check("{{ slice .list 1 }} {{ slice .list 1 2 }} {{ (index .turns 0).c }}", "[q r] [q] hi");
    check("{{ .a | print \"z\" | len }} {{ 3 | and 1 }} {{ 0 | or 0 }}", "2 3 0");
    check("{{ print .a .n 1 2 \"z\" }}{{ println .a 1 }}", "x3 1 2zx 1\n");
    check(
        r#"{{ printf "%s-%d-%v-%5d|%-5s|%05d|%q|%t|%.2f|%%|%e" .a 7 .n 42 "ab" 42 "q\"s" true 2.5 1.5 }}"#,
        r#"x-7-3-   42|ab   |00042|"q\"s"|true|2.50|%|1.500000e+00"#,
    );
    check(
        r#"{{ printf "%d" "x" }} {{ printf "%s %s" "a" }} {{ printf "%s" "a" "b" }}"#,
        "%!d(string=x) a %!s(MISSING) a%!(EXTRA string=b)",
    );
    check("{{ html .s }}|{{ urlquery .s }}", "&lt;b&gt;&amp;&#34;&#39;\n|%3Cb%3E%26%22%27%0A");
    check(
        "{{ currentDate }} {{ currentDate \"x\" }} {{ yesterdayDate }}",
        "2026-11-22 2026-11-22 2026-11-21",
    );
}

#[test]
fn errors_have_a_line() {
    let check = |source: &str, expect: &str| {
        let error = run(source, &data()).expect_err(source);
        assert!(error.contains(expect), "{source}: {error}");
    };
    check("\n{{ foo .a }}", "function \"foo\" not defined (line 2, column 4)");
    check("{{ range .a }}{{ block \"x\" . }}{{ else }}", "unexpected {{else}} in define clause");
    check("{{ if }}x{{ end }}", "missing value for if");
    check("{{ if .a }}x", "unexpected EOF");
    check("{{ end }}", "unexpected {{end}}");
    check("{{ .a", "unclosed action (line 1, column 6)");
    check("ä\nö {{- if .a -}}\n  {{ else }}{{ $x }}", "undefined variable \"$x\" (line 3, column 16)");
    check("{{ (.a }}", "unclosed left paren");
    check("{{ $x }}", "undefined variable \"$x\"");
    let declarations = "{{ $a := 1 }}".repeat(1000);
    check(&declarations, "more than 1000 variables in scope");
    check("{{ \"open }}", "unterminated quoted string");
    check("{{ .a | 1 }}", "non executable command in pipeline stage 2");
    check("{{ break }}", "outside {{range}}");
    check("{{ eq .n 3 }}", "incompatible types for comparison: float64 and int");
    check("{{ .a.b }}", "can't evaluate field b in type string");
    check("{{ .none.deep }}", "nil pointer");
    check("{{ index .list 3 }}", "index out of range: 3");
    check("{{ range .a }}x{{ end }}", "range can't iterate over x");
    check("{{ template \"none\" . }}", "template \"none\" not defined");
    check("{{ and }}", "wrong number of args");
}

#[test]
fn costs_are_bounded() {
    let check = |source: &str, expect: &str| {
        let error = run(source, &data()).expect_err(source);
        assert!(error.contains(expect), "{source}: {error}");
    };
    check("{{ range 100000000 }}{{ end }}", "too many steps");
    check("{{ define \"m\" }}{{ template \"m\" . }}{{ end }}{{ template \"m\" . }}", "template depth");
    check("{{ $x := \"0123456789abcdef\" }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}", "too");
    check(&format!("{}{}", "{{ if .a }}".repeat(300), "{{ end }}".repeat(300)), "nested too deeply");
    check(&format!("{{{{ {}.a{} }}}}", "(".repeat(5000), ")".repeat(5000)), "nested too deeply");
}

#[test]
fn repeated_long_values_are_bounded() {
    let data = json!({"long": "x".repeat(1 << 20)});
    let check = |source: &str, expect: &str| {
        let error = run(source, &data).expect_err(source);
        assert!(error.contains(expect) && error.len() < 200, "{error}");
    };
    check("{{ range 100 }}{{ if eq $.long $.long }}{{ end }}{{ end }}", "too many steps");
    check("{{ range .long }}{{ end }}", "range can't iterate over xxx");
    check(&format!("{{{{ print {} }}}}", ".long ".repeat(40)), "a text is too long");

    // A template that fails in the end does not take much more memory than one that succeeds.
    let many = vec![Value::from_json(&data["long"]); 100];
    let all = [
        print::print(&many),
        print::println(&many),
        print::printf(&"%v".repeat(100), &many),
        print::printf("", &many),
        print::format_json(&Value::list(many)),
    ];
    for text in all {
        assert!((MAX_OUTPUT_BYTES + 1..MAX_OUTPUT_BYTES + (2 << 20)).contains(&text.len()), "{}", text.len());
    }
}

#[test]
fn mentions_and_cuts() {
    let source = "{{ .System }}{{ range $m := .Messages }}{{ $m.Role }}{{ end }}{{ if .Prompt }}p{{ (.Tools) }}{{ end }}";
    let template = Template::parse(source).unwrap();
    let names: Vec<&str> = template.mentioned_names().into_iter().collect();
    assert_eq!(names, ["$m", "Messages", "Prompt", "Role", "System", "Tools"]);

    let up_to = |source: &str| {
        let template = Template::parse(source).unwrap().truncate_after("Response");
        let data =
            Value::map([("Response".to_owned(), Value::from("R")), ("t".to_owned(), Value::Bool(true))]);
        template.execute(&data, &Dates::default()).unwrap()
    };
    assert_eq!(up_to("a {{ .Response }} b"), "a R");
    assert_eq!(up_to("a {{ if .t }}<{{ .Response }}>{{ end }} b"), "a <R");
    assert_eq!(up_to("a {{ if .Response }}<{{ .Response }}>{{ else }}-{{ end }} b"), "a <R");
    assert_eq!(up_to("no mention"), "no mention");
    let template = Template::parse("p").unwrap().append_field("Response");
    let data = Value::map([("Response".to_owned(), Value::from("R"))]);
    assert_eq!(template.execute(&data, &Dates::default()).as_deref(), Ok("pR"));
}
