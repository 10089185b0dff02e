"""Where sentences end, as a reader sees it: lines of captions and prompts in many scripts; and the cuts of windows."""

import random
import time

import pytest

from debias_sd.datasets.world import prompt_set
from debias_sd.prompts.cuts import SENTENCE, cut_ranks
from debias_sd.sentences import split_sentences

# A "|" stands where a reader sees a sentence end; the white space there is not part of a sentence.
LINES = {
    # Other scripts
    "hindi": "एक लाल तारा है। |नीचे एक नीली गेंद है।",
    "hindi without space": "एक तारा है।|एक गेंद है।",
    "sanskrit": "धर्मक्षेत्रे कुरुक्षेत्रे॥ |समवेताः॥",
    "arabic": "هل هذه قطة؟ |نعم! |إنها سوداء.",
    "arabic doubled": "ما هذا؟! |كلب.",
    "urdu": "ایک بلی بیٹھی ہے۔ |ایک کتا سو رہا ہے۔",
    "urdu question": "کیا یہ گھر ہے؟ |ہاں۔",
    "chinese": "一只猫坐着。|一只狗跑了！|真的吗？|是",
    "chinese quote": "牌子上写着“停。”|车停了。",
    "japanese": "赤い星がある。|大きい！|青いボールもある。",
    "japanese quote goes on": "「行こう。」と彼は言った。|雨だ。",
    "armenian": "Կարմիր աստղ։ |Կապույտ գնդակ։",
    "amharic": "ቀይ ኮከብ። |ሰማያዊ ኳስ።",
    "burmese": "ကြောင်တစ်ကောင်။ |ခွေးတစ်ကောင်။",
    "russian without space": "Кот чёрный.|Там стоит дом.",
    "greek": "Μια γάτα. |Ένας σκύλος.",
    "german": "Ein Dr. Müller, z.B. im Wald. |Es regnet.",
    # The space was forgotten
    "no space": "The cat is black.|There is a dog.|It barks.",
    "no space before an article": "The cat is black.|A dog barks.",
    "no space after a mark": "Is it a dog?|Yes!|It is.",
    "no space after a year": "Built in 1990.|The roof is red.",
    "no space after a bracket": "A cat (it is grey.)|There is a dog.",
    "no space after dots": "A man waits...|Then he goes.",
    "domain": "See example.com and Example.Com or foo.Net today. |Go.",
    "address": "It reads https://a.example/Find.Me?Where.To= here. |Go.",
    "mail": "Write to first.Last@example.org now. |Go.",
    "file": "Open file.txt, README.md and a.b.Cat now. |Go.",
    "decimals": "It is 3.5 m, 16:9 and v2.0.1 today. |Go.",
    "acronym": "The U.S.A. team and the U.N. flag. |Go.",
    "small letter": "A cat.a dog sits. |Go.",
    "capitals": "It says STOP.GO in red. |Go.",
    # Quotes and letters
    "letter in quotes": "The first key is “B.” |“K” is beside it.",
    "straight letter in quotes": 'The first key is "B." |"K" is beside it.',
    "word in quotes": 'The sign says "Stop." |A car stops.',
    "quote goes on": "“Stop!” says a sign. |It is red.",
    "quoted question": "“Is it?” |He asks again.",
    "guillemets": "Il dit «Stop.» |Une voiture passe.",
    "bracketed": "A cat (it is grey.) |A dog sleeps.",
    # Figures and volumes
    "figure letter": "Fig. A shows a cat. |Fig. B. |Smith drew both.",
    "figure number": "See Fig. 3 and figs. 4 to 6. |Go.",
    "figure at the end": "The fruit is a fig. |A bird eats it.",
    "volume": "He reads Vol. II. |Then he sleeps.",
    "volume one": "He reads Vol. I. |Then he sleeps.",
    "volume five": "He reads Vol. V. |She sleeps.",
    "number": "Bus No. 5 waits. |He says no. |She nods.",
    "opus": "He plays Op. 27 No. 2 here. |Go.",
    # Hours
    "weekday": "It opens at 8 a.m. Monday to Friday. |Go.",
    "zone": "At 5 p.m. Eastern a bell rings. |Go.",
    "hour at the end": "It is 5 p.m. |People wait.",
    "hour in the middle": "At 6 a.m. in line they wait. |Go.",
    # Names and titles
    "degree": "A Ph.D. Student reads. |She has a Ph.D. |The wall is red.",
    "brand": "The Yahoo! Inc. sign glows. |Yahoo! Mail is open. |Go.",
    "brand at the end": "He reads Yahoo! |The page is long.",
    "initials": "J. R. R. Tolkien reads. |He smiles.",
    "two initials": "George W. Bush waves. |Go.",
    "mister": "Mr. Smith and Mrs. Jones vs. Dr. Who. |Go.",
    "saint": "St. John stands on Main St. |The shop is open.",
    "junior": "Martin Luther King Jr. Memorial stands here. |Go.",
    "generation": "Bob Jr. |He waves.",
    "company": "A sign of Acme Inc. |It is red.",
    "others": "Smith et al. (2020) drew it. |Go.",
    "also known": "Bob, a.k.a. Ace, i.e. the pilot. |Go.",
    # Line breaks
    "name over two lines": "There is a statue of Abraham\nLincoln in the park. |It is grey.",
    "title over two lines": "A bust of Dr.\nSmith stands here. |Go.",
    "saint over two lines": "The church of St.\nJohn stands here. |Go.",
    "article at the end of a line": "A photo of the\nEiffel Tower at night. |Go.",
    "comma at the end of a line": "A cat, a dog,\nPeter and a bird. |Go.",
    "small letter in the next line": "A cat on\na mat. |A dog.",
    "windows line": "A cat on\r\na mat. |A dog.",
    "paragraphs": "There is a statue of Abraham\n\n|Lincoln stood there",
    "paragraph before a small letter": "red shoes\n\n|blue hat",
    "headings": "The Cat House\n|New York",
    "list": "A cat\n|A dog\n|- red\n|- blue",
    "acronym at the end of a line": "Made in the U.S.\n|Red car",
    "stop and break": "A cat.\n|A dog.",
    "other breaks": "A cat.\u2028|A dog\u2029|The end",
    # Ellipses and signs
    "ellipsis": "A man waits... |A bus comes. |He is... happy.",
    "one sign": "A man waits… |A bus… comes.",
    "spaced": "He waits . . . and goes. |Go.",
    "emoji": "A cake!🎂 |Fun.",
    "emoji after a space": "A party 🎉. |A cake 🎂! |Fun",
    "only a stop": "...",
    "pronoun": "He is taller than I. |Then he sits.",
    "numbered": "1. A cat. |2. A dog.",
}


@pytest.mark.parametrize("name", LINES)
def test_a_text_is_split_where_a_reader_stops(name):
    """Case 111."""
    marked = LINES[name]
    assert split_sentences(marked.replace("|", "")) == [" ".join(part.split()) for part in marked.split("|")]


@pytest.mark.parametrize("name", LINES)
def test_windows_are_cut_between_the_same_sentences(name):
    """Case 111: one notion of a sentence for captions and for windows."""
    parts = LINES[name].split("|")
    text, starts, place = "".join(parts), set(), 0
    for part in parts[:-1]:
        place += len(part)
        starts.add(place)
    places = [number for number, character in enumerate(text) if number and not character.isspace()]
    ranks = cut_ranks(text, places)
    assert {number for number, rank in zip(places, ranks, strict=True) if rank == SENTENCE} == starts


def test_captions_of_the_embedded_world_have_the_sentences_that_they_were_made_of():
    for caption in prompt_set(11, count=200).captions:
        assert split_sentences(caption.text) == list(caption.sentences)


SIGNS = [
    ".",
    "!",
    "?",
    "…",
    "(",
    '."',
    "a.b.",
    "a.B",
    "Dr. ",
    ". ",
    ". . ",
    "\n",
    "\r\n",
    "a\nB",
    "。",
    "।」",
    "A. ",
    "🙂!",
    "x",
]


@pytest.mark.parametrize("sign", SIGNS)
def test_one_sign_again_and_again_takes_linear_time(sign):
    """Case 111: a quadratic splitter needs minutes for these; a megabyte of them takes ten times as long."""
    text = sign * (100_000 // len(sign)) + "x"
    started = time.process_time()
    split_sentences(text)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("seed", range(50))
def test_no_character_is_lost_or_made(seed):
    """Case 111."""
    rng = random.Random(seed)
    text = "".join(rng.choice([*SIGNS, "cat", "Cat", " ", "3", "”", "と", "ß", "İ"]) for _ in range(300))
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
