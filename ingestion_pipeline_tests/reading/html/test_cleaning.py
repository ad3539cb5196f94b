from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.reading.html.cleaning import readable
from ingestion_pipeline_tests.samples import sample

SEEN = "<h1>Baking I</h1>"


@pytest.mark.parametrize(
    "hidden",
    [
        "<script>secret</script>",
        "<style>secret</style>",
        "<template><p>secret</template>",
        "<noscript>secret</noscript>",
        "<!-- secret -->",
        "<svg><title>secret</title></svg>",
        "<dialog>secret</dialog>",
        "<div hidden>secret</div>",
        "<div aria-hidden='TRUE'><p>secret</div>",
        "<p style='display:none'>secret",
        "<p style='color:red; DISPLAY : none !important'>secret",
        "<p style='visibility: hidden'>secret",
        "<p style='font-size:0'>secret",
        "<p style='font-size: 0px;'>secret",
        "<p style='text-indent:-9999px'>secret",
        "<p style='position:absolute; left:-5000px'>secret",
        "<p style='height:0; overflow:hidden'>secret",
        "<p style='position:absolute;clip:rect(0,0,0,0)'>secret",
        "<style>.x{color:red;display:none}</style><p class='x'>secret",
        "<style>/* a */ #y , .z { visibility:hidden }</style><p id=y>secret",
        "\U000e0053\U000e0045\U000e0043",
        "\ufe00\ufe01\U000e0101",
        "<p aria-hidden=' true '>secret",
    ],
)
def test_content_hidden_from_visitors_is_not_text(hidden: str) -> None:
    assert cleaned_text(f"<body>{SEEN}{hidden}</body>") == "Baking I"


@pytest.mark.parametrize(
    "output",
    [
        "<p style='opacity:0'>shown",
        "<p style='display:block'>shown",
        "<p style='font-size:0.9em'>shown",
        "<p style='margin-left:-10px'>shown",
        "<p style='width:100px;overflow:hidden'>shown",
        "<p style='position:absolute;left:10px'>shown",
        "<p hidden=until-found>shown",
        "<p aria-hidden=false>shown",
        "<details><summary>shown</summary></details>",
        "<style>@media print{.x{display:none}}</style><p class=x>shown",
        "<style>.t{display:none} .t.on{display:block}</style><p class=t>shown",
        "<style>.a .x{display:none}</style><p class=x>shown",
        "<select><option>shown</select>",
    ],
)
def test_content_that_visitors_can_reveal_is_text(output: str) -> None:
    assert cleaned_text(f"<body>{SEEN}{output}</body>") == "Baking I\nshown"


def test_a_page_that_is_hidden_until_a_script_runs_is_not_empty() -> None:
    assert cleaned_text("<div style='display:none'><p>Everything<script>x</script></div>") == ("Everything")
    assert cleaned_text("<body style='visibility:hidden'>Everything") == "Everything"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a<b>b</b>c<p>d", "abc\nd"),
        ("<div>a</div>b", "a\nb"),
        ("<ul><li>a<li>b</ul>", "a\nb"),
        ("a<br>b", "a\nb"),
        ("<td>a<td>b", "ab"),
        ("<table><td>a<td>b</table>", "a\nb"),
        ("<p>a\n  \t b\u00a0c</p>", "a b c"),
        ("<p>1 &lt; 2 &amp;amp; <a title='<p>x'>3</a>", "1 < 2 &amp; 3"),
        ("<span>Posted On</span><span>8 May</span>", "Posted On 8 May"),
        ("<span>H</span><span>i</span>", "Hi"),
        ("<p>soft\u00adhyphen\u200b \ufeffmark</p>", "softhyphen mark"),
        ("", ""),
    ],
)
def test_a_block_is_a_line(html: str, text: str) -> None:
    assert cleaned_text(html) == text


def test_text_that_another_extractor_finds_is_found() -> None:
    folder = "courses/cleancatalog/atlanticcape_baking_certificate"
    theirs = sample(f"{folder}.simplified.txt").read_text()
    ours = cleaned_text(sample(f"{folder}.html").read_text())

    words = {word for word in theirs.replace("](", " ").split() if word.isalpha()}

    assert len(words) > 150
    assert {word for word in words if word not in ours} == set()


@given(st.text(alphabet="ab é漢\u00a0\u2003\u3000\u200b\t\n\x0b\x1f\x85&<>;#l", max_size=40))
def test_a_paragraph_is_its_words_whatever_is_between_them(text: str) -> None:
    message = cleaned_text(f"<p>{escape(text)}<p>b <b>b</b>")

    assert message == "\n".join(filter(None, [readable(text.replace("\n", " ")), "b b"]))


def test_preformatted_text_is_unchanged() -> None:
    assert cleaned_text("<p>&amp;lt;<plaintext>&copy; b") == "&lt;\n&copy; b"


@given(st.text(alphabet="<>/&;'\"= abp\n\0\ud800!-#x", max_size=80))
def test_no_text_raises_or_leaves_a_tag(html: str) -> None:
    text = cleaned_text(html)

    assert "\0" not in text
    assert text == text.strip()


@given(st.text(alphabet="ab \u00a0\u2003\u3000\u2028\t\n\r\x0b\x0c\x1f\x85é", max_size=40))
def test_whitespace_of_all_kinds_is_collapsed(text: str) -> None:
    lines = [" ".join(line.split()) for line in text.replace("\r", "\n").split("\n")]

    assert readable(text) == "\n".join(line for line in lines if line)
