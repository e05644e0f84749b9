package tokens

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
)

// imageHeadBytesMax is how much of an image is decoded to find its size; where that is not enough, the
// size is unknown. A JPEG may have its camera's notes before its size, up to 64 KiB in each of them.
const imageHeadBytesMax = 96 << 10

// DataImageSize is the size in pixels of an image within a data: URL, as PNG, JPEG, GIF or WebP; zeros
// where it is unknown, as for any other URL. It reads the image's head only.
func DataImageSize(url []byte) (width, height int) {
	meta, data, found := bytes.Cut(url, []byte(","))
	if !found || !bytes.HasPrefix(meta, []byte("data:")) || !bytes.HasSuffix(meta, []byte(";base64")) {
		return 0, 0
	}
	data = data[:min(len(data), base64.StdEncoding.EncodedLen(imageHeadBytesMax))]
	data = data[:len(data)/4*4]
	head := make([]byte, base64.StdEncoding.DecodedLen(len(data)))
	n, _ := base64.StdEncoding.Decode(head, data) // what was decoded before an error is good
	return headSize(head[:n])
}

func headSize(head []byte) (width, height int) {
	read := webpConfig
	switch {
	case bytes.HasPrefix(head, []byte("\x89PNG")):
		read = func(b []byte) (image.Config, error) { return png.DecodeConfig(bytes.NewReader(b)) }
	case bytes.HasPrefix(head, []byte("\xff\xd8")):
		read = func(b []byte) (image.Config, error) { return jpeg.DecodeConfig(bytes.NewReader(b)) }
	case bytes.HasPrefix(head, []byte("GIF8")):
		read = func(b []byte) (image.Config, error) { return gif.DecodeConfig(bytes.NewReader(b)) }
	}
	c, err := read(head)
	if err != nil {
		return 0, 0
	}
	return c.Width, c.Height
}

// webpConfig reads the first chunk of a WebP container: extended, lossless or lossy.
func webpConfig(b []byte) (image.Config, error) {
	if len(b) < 30 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WEBP" {
		return image.Config{}, image.ErrFormat
	}
	le := binary.LittleEndian
	switch string(b[12:16]) {
	case "VP8X":
		return image.Config{Width: int(le.Uint32(b[24:])&0xffffff) + 1, Height: int(le.Uint32(b[26:])>>8) + 1}, nil
	case "VP8L":
		size := le.Uint32(b[21:])
		return image.Config{Width: int(size&0x3fff) + 1, Height: int(size>>14&0x3fff) + 1}, nil
	case "VP8 ":
		return image.Config{Width: int(le.Uint16(b[26:]) & 0x3fff), Height: int(le.Uint16(b[28:]) & 0x3fff)}, nil
	}
	return image.Config{}, image.ErrFormat
}
