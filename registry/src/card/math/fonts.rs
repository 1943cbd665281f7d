//! The letters of Unicode's mathematical alphabets. Browsers no longer choose them by an attribute.

use pulldown_latex::event::Font;

/// Where an alphabet begins: its capital, small and Greek letters, and its digits.
struct Alphabet {
    capitals: u32,
    small: u32,
    greek: Option<u32>,
    digits: Option<u32>,
}

/// A letter or digit in a font. Others stay as they are.
pub(super) fn styled(font: Font, c: char) -> char {
    if let Some(early) = early_letter(font, c) {
        return early;
    }
    let alphabet = alphabet(font, c);
    let code = match (alphabet, c) {
        (Some(Alphabet { capitals, .. }), 'A'..='Z') => capitals + (c as u32 - 'A' as u32),
        (Some(Alphabet { small, .. }), 'a'..='z') => small + (c as u32 - 'a' as u32),
        // 25 capitals, one of them variant, and nabla precede the small letters.
        (Some(Alphabet { greek: Some(greek), .. }), 'Α'..='Ρ' | 'Σ'..='Ω') => {
            greek + (c as u32 - 'Α' as u32)
        }
        (Some(Alphabet { greek: Some(greek), .. }), 'α'..='ω') => greek + 26 + (c as u32 - 'α' as u32),
        (Some(Alphabet { digits: Some(digits), .. }), '0'..='9') => digits + (c as u32 - '0' as u32),
        _ => return c,
    };
    char::from_u32(code).unwrap_or(c)
}

fn alphabet(font: Font, c: char) -> Option<Alphabet> {
    let of = |capitals, small, greek, digits| Some(Alphabet { capitals, small, greek, digits });
    let bold_digits = Some(0x1d7ce);
    match font {
        Font::UpRight => None,
        Font::Bold => of(0x1d400, 0x1d41a, Some(0x1d6a8), bold_digits),
        Font::Italic => of(0x1d434, 0x1d44e, Some(0x1d6e2), None),
        // Its letters are as those of variables: only Greek capitals are upright.
        Font::BoldSymbol if ('Α'..='Ω').contains(&c) => of(0x1d400, 0x1d41a, Some(0x1d6a8), bold_digits),
        Font::BoldItalic | Font::BoldSymbol => of(0x1d468, 0x1d482, Some(0x1d71c), bold_digits),
        Font::Script => of(0x1d49c, 0x1d4b6, None, None),
        Font::BoldScript => of(0x1d4d0, 0x1d4ea, None, None),
        Font::Fraktur => of(0x1d504, 0x1d51e, None, None),
        Font::BoldFraktur => of(0x1d56c, 0x1d586, None, None),
        Font::DoubleStruck | Font::DoubleStruckItalic => of(0x1d538, 0x1d552, None, Some(0x1d7d8)),
        Font::SansSerif => of(0x1d5a0, 0x1d5ba, None, Some(0x1d7e2)),
        Font::BoldSansSerif => of(0x1d5d4, 0x1d5ee, Some(0x1d756), Some(0x1d7ec)),
        Font::SansSerifItalic => of(0x1d608, 0x1d622, None, Some(0x1d7e2)),
        Font::SansSerifBoldItalic => of(0x1d63c, 0x1d656, Some(0x1d790), Some(0x1d7ec)),
        Font::Monospace => of(0x1d670, 0x1d68a, None, Some(0x1d7f6)),
    }
}

/// Letters that were in Unicode before their alphabets.
fn early_letter(font: Font, c: char) -> Option<char> {
    Some(match (font, c) {
        (Font::Italic, 'h') => 'ℎ',
        (Font::Script, 'B') => 'ℬ',
        (Font::Script, 'E') => 'ℰ',
        (Font::Script, 'F') => 'ℱ',
        (Font::Script, 'H') => 'ℋ',
        (Font::Script, 'I') => 'ℐ',
        (Font::Script, 'L') => 'ℒ',
        (Font::Script, 'M') => 'ℳ',
        (Font::Script, 'R') => 'ℛ',
        (Font::Script, 'e') => 'ℯ',
        (Font::Script, 'g') => 'ℊ',
        (Font::Script, 'o') => 'ℴ',
        (Font::Fraktur, 'C') => 'ℭ',
        (Font::Fraktur, 'H') => 'ℌ',
        (Font::Fraktur, 'I') => 'ℑ',
        (Font::Fraktur, 'R') => 'ℜ',
        (Font::Fraktur, 'Z') => 'ℨ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'C') => 'ℂ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'H') => 'ℍ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'N') => 'ℕ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'P') => 'ℙ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'Q') => 'ℚ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'R') => 'ℝ',
        (Font::DoubleStruck | Font::DoubleStruckItalic, 'Z') => 'ℤ',
        _ => return None,
    })
}
