package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
)

// A secret is tg- and 24 random characters (142 bits), and 6 of checksum, all of
// 0-9A-Za-z. The checksum is the CRC-32 (IEEE) of what stands before it, in base
// 62, most significant digit first. It keeps typing errors and random guesses
// away from Redis; it proves nothing else.
const (
	secretPrefix = "tg-"
	randomLen    = 24
	checksumLen  = 6 // 62^6 > 2^32
	checksumAt   = len(secretPrefix) + randomLen

	// SecretLen is the length of every secret in bytes.
	SecretLen = checksumAt + checksumLen
)

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// foreign is 1 for bytes outside the alphabet.
var foreign = func() (table [256]byte) {
	for i := range table {
		table[i] = 1
	}
	for _, c := range []byte(alphabet) {
		table[c] = 0
	}
	return table
}()

// NewSecret makes a secret. Only its Hash may be stored.
func NewSecret() string {
	secret := make([]byte, checksumAt, SecretLen)
	copy(secret, secretPrefix)
	// Bytes from 248 = 4 · 62 on are dropped: with them the first characters of
	// the alphabet would be likelier than the others.
	const fair = 256 / len(alphabet) * len(alphabet)
	var random [2 * randomLen]byte
	for n := len(secretPrefix); n < checksumAt; {
		_, _ = rand.Read(random[:]) // never fails
		for _, b := range random {
			if int(b) < fair && n < checksumAt {
				secret[n] = alphabet[int(b)%len(alphabet)]
				n++
			}
		}
	}
	sum := checksum(secret)
	return string(append(secret, sum[:]...))
}

// Check says whether the secret is well-formed and its checksum right: whether
// it is worth a lookup. Apart from a wrong length or prefix it takes the same
// time for all.
func Check(secret []byte) bool {
	if len(secret) != SecretLen || string(secret[:len(secretPrefix)]) != secretPrefix {
		return false
	}
	var wrong byte
	for _, c := range secret[len(secretPrefix):checksumAt] {
		wrong |= foreign[c]
	}
	sum := checksum(secret[:checksumAt])
	for i, c := range sum {
		wrong |= c ^ secret[checksumAt+i]
	}
	return wrong == 0
}

func checksum(of []byte) (sum [checksumLen]byte) {
	crc := crc32.ChecksumIEEE(of)
	for i := checksumLen - 1; i >= 0; i-- {
		sum[i] = alphabet[crc%uint32(len(alphabet))]
		crc /= uint32(len(alphabet))
	}
	return sum
}

// Hash is what stands for a secret everywhere outside the client: SHA-256, which
// needs no salt since a secret has 142 random bits.
func Hash(secret []byte) [sha256.Size]byte { return sha256.Sum256(secret) }

// HexHash is Hash as SQL and Redis name it: 64 lower-case hex digits.
func HexHash(secret string) string {
	hash := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(hash[:])
}
