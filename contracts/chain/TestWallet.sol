// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// The smallest contract wallet (EIP-1271), for tests: a signature is a version byte and the 65
/// bytes of its owner's key, so that it is longer than a plain account's and must be judged here.
contract TestWallet {
    address public owner;

    constructor(address owner_) {
        owner = owner_;
    }

    function isValidSignature(bytes32 digest, bytes calldata signature) external view returns (bytes4) {
        if (signature.length != 66 || signature[0] != 0x01) return 0xffffffff;
        bytes32 r = bytes32(signature[1:33]);
        bytes32 s = bytes32(signature[33:65]);
        address recovered = ecrecover(digest, uint8(signature[65]), r, s);
        return recovered != address(0) && recovered == owner ? this.isValidSignature.selector : bytes4(0xffffffff);
    }
}
