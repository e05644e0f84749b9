package tokens

import "strings"

// Detail is how closely a request asks a model to look at an image.
type Detail uint8

const (
	DetailHigh     Detail = iota // also for "auto" and where it is not given: never below what auto chooses
	DetailLow                    // "low"
	DetailOriginal               // "original": as high, where a model does not know it
)

// DetailNamed is the detail of that name in a request.
func DetailNamed(name string) Detail {
	switch name {
	case "low":
		return DetailLow
	case "original":
		return DetailOriginal
	}
	return DetailHigh
}

// imageRule is how a model counts images, after "Images and vision" in OpenAI's API documentation. There
// are two ways.
//
// By tiles: the image is shrunk to fit a square of 2048 pixels, and then until its shorter side has 768;
// each tile of 512 pixels costs tile, the image base. In low detail it costs base alone.
//
// By patches: each of 32 pixels costs factor hundredths, and the image is shrunk until it has no more
// than a number of them. Low detail is not counted as less, since not all of these models do.
type imageRule struct {
	prefix, part string // of the model's name
	base, tile   int64
	patches      int64 // at most, 0: by tiles
	original     int64 // at most, in original detail
	factor       int64 // hundredths of a token per patch
}

// imageRules: the first that fits is right. Where the documentation and what is billed differ, the larger
// one stands here.
var imageRules = []imageRule{
	{prefix: "gpt-5", part: "nano", patches: 1536, original: 1536, factor: 246},
	{prefix: "gpt-5", part: "mini", patches: 1536, original: 1536, factor: 162},
	{prefix: "gpt-5.", patches: 2500, original: 10_000, factor: 120},
	{prefix: "gpt-5", base: 70, tile: 140},
	{prefix: "gpt-4.1", part: "nano", patches: 1536, original: 1536, factor: 246},
	{prefix: "gpt-4.1", part: "mini", patches: 1536, original: 1536, factor: 162},
	{prefix: "gpt-4o", part: "mini", base: 2833, tile: 5667},
	{prefix: "gpt-4", base: 85, tile: 170},
	{prefix: "chatgpt-4o", base: 85, tile: 170},
	{prefix: "o1", base: 75, tile: 150},
	{prefix: "o3", base: 75, tile: 150},
	{prefix: "o4-mini", patches: 1536, original: 1536, factor: 172},
	{prefix: "computer-use", base: 65, tile: 129},
	// Models of others, by what the dearest of the above but one takes for any image.
	{patches: 1536, original: 1536, factor: 246},
}

const (
	tilePixels, tileFitPixels, tileShortPixels = 512, 2048, 768
	patchPixels                                = 32
	// tilesMax is what an image of the longest shape has: 2048 by 768 pixels.
	tilesMax = (tileFitPixels / tilePixels) * ((tileShortPixels + tilePixels - 1) / tilePixels)
	// imagePixelsMax bounds a side, so that no product overflows. No provider takes a larger image.
	imagePixelsMax = 1 << 20
)

// ImageTokens is an upper bound of what one image costs a model, by the model's published rule. Width and
// height are in pixels; 0 is unknown and counts as the largest.
func ImageTokens(model string, width, height int, detail Detail) int64 {
	for _, r := range imageRules {
		if strings.HasPrefix(model, r.prefix) && strings.Contains(model, r.part) {
			return r.tokens(int64(width), int64(height), detail)
		}
	}
	panic("BUG: tokens: the last image rule fits all models")
}

func (r imageRule) tokens(width, height int64, detail Detail) int64 {
	known := 0 < width && width <= imagePixelsMax && 0 < height && height <= imagePixelsMax
	switch {
	case r.patches > 0:
		patches := r.patches
		if detail == DetailOriginal {
			patches = r.original
		}
		if known && r.prefix != "" {
			patches = min(patches, up(width, patchPixels)*up(height, patchPixels))
		}
		return up(patches*r.factor, 100)
	case detail == DetailLow:
		return r.base
	case !known:
		return r.base + tilesMax*r.tile
	}
	if long := max(width, height); long > tileFitPixels {
		width, height = up(width*tileFitPixels, long), up(height*tileFitPixels, long)
	}
	if short := min(width, height); short > tileShortPixels {
		width, height = up(width*tileShortPixels, short), up(height*tileShortPixels, short)
	}
	return r.base + up(width, tilePixels)*up(height, tilePixels)*r.tile
}

// up divides and rounds up.
func up(a, b int64) int64 { return (a + b - 1) / b }
