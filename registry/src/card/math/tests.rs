use super::{Formulas, MAX_BYTES, MAX_FORMULA_BYTES};

fn render(source: &str) -> Option<String> {
    Formulas::default().render(source, false)
}

/// The MathML within its outer elements.
fn inner(source: &str) -> String {
    let html = render(source).unwrap_or_else(|| panic!("{source} is not shown"));
    let inner = html.strip_prefix("<math><mrow>").and_then(|html| html.strip_suffix("</mrow></math>"));
    inner.unwrap().to_owned()
}

#[test]
fn formulas_become_mathml() {
    for (source, expect) in [
        ("x", "<mi>x</mi>"),
        (r"\Gamma\alpha", "<mi mathvariant=\"normal\">Γ</mi><mi>α</mi>"),
        ("3.14", "<mn>3.14</mn>"),
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\frac{a}b", "<mfrac><mrow><mi>a</mi></mrow><mi>b</mi></mfrac>"),
        (r"\sqrt[3]{x}", "<mroot><mrow><mi>x</mi></mrow><mn>3</mn></mroot>"),
        (r"\hat x", "<mover><mi>x</mi><mo stretchy=\"false\">^</mo></mover>"),
        (r"a = -b", "<mi>a</mi><mo>=</mo><mo form=\"prefix\">−</mo><mi>b</mi>"),
        (r"a \le b < c", "<mi>a</mi><mo>≤</mo><mi>b</mi><mo>&lt;</mo><mi>c</mi>"),
        (r"\not\in", "<mo>∈\u{338}</mo>"),
        (r"\mathbb{R}", "<mrow><mi>ℝ</mi></mrow>"),
        (r"\boldsymbol{\theta x}", "<mrow><mi>𝜽</mi><mi>𝒙</mi></mrow>"),
        (r"\mathbf{A1}", "<mrow><mi>𝐀</mi><mn>𝟏</mn></mrow>"),
        (r"\mathcal{L}", "<mrow><mi>ℒ</mi></mrow>"),
        (r"\mathrm{d}x", "<mrow><mi mathvariant=\"normal\">d</mi></mrow><mi>x</mi>"),
        (r"\text{ if }x", "<mtext>\u{a0}if\u{a0}</mtext><mi>x</mi>"),
        (
            r"\operatorname*{arg\,max}_x",
            "<munder><mo form=\"prefix\" lspace=\"0\" rspace=\"0.1667em\" movablelimits=\"false\">arg\u{2009}max</mo><mi>x</mi></munder>",
        ),
        (r"\sum_i", "<munder><mo movablelimits=\"true\">∑</mo><mi>i</mi></munder>"),
        (
            r"\left( x \right]",
            "<mrow><mo symmetric=\"true\" stretchy=\"true\">(</mo><mi>x</mi><mo symmetric=\"true\" stretchy=\"true\">]</mo></mrow>",
        ),
        (
            r"\begin{aligned}a&=b\\c\end{aligned}",
            "<mrow><mtable displaystyle=\"true\"><mtr><mtd class=\"math-right\"><mi>a</mi></mtd><mtd class=\"math-left\"><mo>=</mo><mi>b</mi></mtd></mtr><mtr><mtd class=\"math-right\"><mi>c</mi></mtd></mtr></mtable></mrow>",
        ),
        (
            r"\begin{array}{l|c}\hline a&b\\c\end{array}",
            "<mrow><mtable><mtr class=\"math-rule\"><mtd class=\"math-left\"><mi>a</mi></mtd><mtd class=\"math-line\"><mi>b</mi></mtd></mtr><mtr><mtd class=\"math-left\"><mi>c</mi></mtd></mtr></mtable></mrow>",
        ),
    ] {
        assert_eq!(inner(source), expect, "{source}");
    }
    let display = Formulas::default().render(r"\displaystyle x", true).unwrap();
    assert!(display.starts_with("<span class=\"math\" tabindex=\"0\"><math display=\"block\">"), "{display}");
}

#[test]
fn scripts_styles_and_links_are_left_out() {
    for source in [
        r"\text{</math><script>alert(1)</script>}",
        r"\operatorname{<script>alert(1)</script>}",
        r"\mathrm{<script>}",
        r"\char60 script\char62",
        "<script>",
        r"\color{red} x \textcolor{#ff0000}{y} \colorbox{red}{z}",
        r"a\!b\hspace{-1000em}c\kern-5emd",
        r"\begin{matrix}a\\[100em]b\end{matrix}",
        r"\text{&lt;&nbsp;}&lt;",
    ] {
        let html = render(source).unwrap_or_default();
        assert!(!html.contains("<script") && !html.contains("style=\"") && !html.contains("=\"-"), "{html}");
    }
    assert!(inner(r"\hspace{1000em}x").starts_with("<mspace width=\"10em\">"));
    for refused in [
        r"\href{javascript:alert(1)}{x}",
        r"\unknown",
        r"\style{color:red}{x}",
        r"\def\a{b}\a",
        r"\newcommand{\a}{\b}",
        r"\let\a\b",
        r"\text x",
        r"\begin{alignat}{é}x\end{alignat}",
        r"\char é",
        r"\frac{a}",
        r"\cancel{ab}",
        "x^",
        "x^a^b",
        "a & b",
        "{",
        "}",
        r"\left(",
        r"\begin{aligned}",
        "\\",
    ] {
        assert_eq!(render(refused), None, "{refused}");
    }
}

#[test]
fn size_and_depth_are_limited() {
    assert!(render(&format!("{}x{}", "{".repeat(30), "}".repeat(30))).is_some());
    let macros: String = (0..20).fold(r"\def\a{xx}".to_owned(), |all, _| all + r"\def\a{\a\a}") + r"\a";
    for source in [
        "{".repeat(100_000),
        format!("{}x{}", "{".repeat(4000), "}".repeat(4000)),
        format!("{}x{}", r"\left(".repeat(600), r"\right)".repeat(600)),
        format!("{}x", r"\hat".repeat(1500)),
        format!("{}x", r"\frac1".repeat(1000)),
        r"\relax".repeat(1000),
        "x^".repeat(4000),
        "x".repeat(MAX_FORMULA_BYTES + 1),
        macros,
    ] {
        assert_eq!(render(&source), None, "{}", &source[..20]);
    }
    // The parser recurses at most as deeply as this.
    let deepest = format!("{}x", r"\frac1\hat".repeat(50));
    let small = std::thread::Builder::new().stack_size(512 * 1024);
    assert!(small.spawn(move || render(&deepest)).unwrap().join().is_ok());
    // Columns of lines do not multiply with rows.
    let table = format!(r"\begin{{array}}{{{}c}}{}\end{{array}}", "|".repeat(4000), r"\\".repeat(1900));
    assert!(render(&table).is_none_or(|html| html.len() < 32 * MAX_FORMULA_BYTES));
}

#[test]
fn the_mathml_of_a_page_is_limited() {
    let mut formulas = Formulas::default();
    let (mut bytes, mut shown) = (0, 0);
    for _ in 0..10_000 {
        let html = formulas.render(r"\frac{a}{b} + \frac{c}{d} + \frac{e}{f}", true);
        bytes += html.as_ref().map_or(0, String::len);
        shown += usize::from(html.is_some());
    }
    assert!(shown > 1000 && bytes < MAX_BYTES + 1024, "{shown} {bytes}");
}

#[test]
fn a_panic_of_the_parser_ends_the_formulas_of_a_page() {
    let mut formulas = Formulas::default();
    assert!(formulas.render("x", false).is_some());
    assert_eq!(formulas.render(r"\char é", false), None);
    assert_eq!(formulas.render("x", false), None);
}
